"""Which servers are refused, and what is said at the start: by answers that servers have given."""

from __future__ import annotations

import pytest

from wal_sink.errors import SchemaMismatch
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.fitness import Server, notices, refuse_unfit
from wal_sink.targets.cassandra.row_plan import TableName
from wal_sink.targets.cassandra.session import create_ledger, ledger_id

LOCAL = {"class": "org.apache.cassandra.locator.LocalStrategy"}
SIMPLE = {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "3"}
ONE = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "east": "3"}
TWO = {**ONE, "west": "2"}

CASSANDRA = Server(
    release_version="5.0.9",
    cluster_name="Test Cluster",
    replication={"system": LOCAL, "system_schema": LOCAL, "shop": ONE},
    settings={
        "minimum_timestamp_fail_threshold": None,
        "maximum_timestamp_fail_threshold": None,
        "user_timestamps_enabled": "true",
        "write_consistency_levels_disallowed": "[]",
        "sai_string_term_size_fail_threshold": "8KiB",
    },
)
"""What the embedded node says."""
KEYSPACES = Server(
    release_version="3.11.2",
    cluster_name="Amazon Keyspaces",
    replication={"system": LOCAL, "system_schema": LOCAL, "system_schema_mcs": LOCAL, "shop": ONE},
)
COSMOS = Server(release_version="3.11.0", cluster_name="CosmosProd", replication={"shop": SIMPLE})
"""What cqlsh prints of it: Connected to CosmosProd … Cassandra 3.11.0 | CQL spec 3.4.4."""
SCYLLA = Server(
    release_version="3.0.8",
    cluster_name="",
    replication={"system": LOCAL, "shop": ONE, "ledgers": ONE},
    scylla_version="2025.1.2-0.20250422.c7bbe9ca0a4b",
    tablets={"shop": 0},
)


def options(**given: str) -> CassandraOptions:
    raw = {"keyspace": "shop", "table": "t", "cassandra.contactPoints": "10.0.0.1"}
    return parse(
        raw | {f"cassandra.{name}": value for name, value in given.items()}, CassandraOptions
    )


def refusal(server: Server, **given: str) -> SchemaMismatch:
    with pytest.raises(SchemaMismatch) as refused:
        refuse_unfit(server, options(**given))
    assert refused.value.remedy
    return refused.value


def said(server: Server, **given: str) -> list[str]:
    return list(notices(server, options(**given)))


def test_cassandra_is_fit() -> None:
    """Also where its settings cannot be read; nothing looms."""
    for server in CASSANDRA, CASSANDRA._replace(settings=None), CASSANDRA._replace(settings={}):
        refuse_unfit(server, options())
        assert said(server) == []


def test_amazon_keyspaces() -> None:
    """By the name of its cluster, or by a keyspace that only it has."""
    assert "no reads at SERIAL" in refusal(KEYSPACES).what
    assert "Amazon Keyspaces" in refusal(KEYSPACES._replace(cluster_name="")).what
    refuse_unfit(CASSANDRA._replace(cluster_name="Amazon keyspaces of ours"), options())


def test_cosmos_db() -> None:
    """By what it says, or by its address, behind which it may say something else."""
    assert "one write timestamp for a row" in refusal(COSMOS).what
    at = "us.example.org, shop.cassandra.cosmos.azure.com"
    assert "Azure Cosmos DB" in refusal(COSMOS._replace(cluster_name="x"), contactPoints=at).what
    refuse_unfit(CASSANDRA._replace(cluster_name="CosmosProd"), options())
    refuse_unfit(CASSANDRA, options(contactPoints="cosmos.azure.com.example.org"))


def test_scylla_with_tablets() -> None:
    """The ledger's keyspace counts, not that of the rows; so does the version."""
    refused = refusal(SCYLLA)
    assert "Scylla 2025.1.2-0.20250422.c7bbe9ca0a4b refuses conditional updates" in refused.what
    assert "tablets = {'enabled': false}" in refused.remedy
    assert "cassandra.ledgerTable" in refused.remedy
    refuse_unfit(SCYLLA, options(ledgerTable="ledgers.led"))
    for old in "6.2.3-0.20250119.bdf1a2a5", "2025.3.9", "unknown":
        refusal(SCYLLA._replace(scylla_version=old))
    for new in "2025.4.0", "2025.4.0~rc1-0.20251101", "2026.1.0":
        refuse_unfit(SCYLLA._replace(scylla_version=new), options())


def test_serial_over_several_datacenters() -> None:
    """The ledger's keyspace counts; with the level that stays in one datacenter there is nothing to say."""
    wide = CASSANDRA._replace(replication={"shop": ONE, "led": TWO})
    assert said(wide) == []
    (notice,) = said(wide, ledgerTable="led.t")
    assert "5 replicas in 2 datacenters (east 3, west 2)" in notice
    assert "needs 3 of them" in notice
    assert "LOCAL_SERIAL" in notice
    assert said(wide, ledgerTable="led.t", serialConsistencyLevel="LOCAL_SERIAL") == []


def test_replicas() -> None:
    """Transient ones count; a strategy that does not tell datacenters apart says nothing of them."""
    of = {"simple": SIMPLE, "net": {**TWO, "away": "0", "odd": "3/1"}}
    server = CASSANDRA._replace(replication=of)
    assert server.replicas("simple") == server.replicas("none") == {}
    assert server.replicas("net") == {"east": 3, "west": 2, "odd": 3}


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("minimum_timestamp_fail_threshold", "1d", ("= 1d", "longest outage")),
        ("maximum_timestamp_fail_threshold", "3600s", ("= 3600s", "ahead of its clock", "clocks")),
        ("user_timestamps_enabled", "false", ("refuses USING TIMESTAMP", "Set it to true")),
        (
            "write_consistency_levels_disallowed",
            "[ANY, LOCAL_QUORUM]",
            ("refuses writes at LOCAL_QUORUM", "cassandra.consistencyLevel"),
        ),
    ],
)
def test_guardrails(setting: str, value: str, words: tuple[str, ...]) -> None:
    """Each is named, with what to do."""
    assert CASSANDRA.settings is not None
    (notice,) = said(CASSANDRA._replace(settings={**CASSANDRA.settings, setting: value}))
    assert all(word in notice for word in (setting, *words))


def test_a_level_of_one_replica() -> None:
    """It weakens the guarantee without breaking it."""
    (notice,) = said(CASSANDRA, consistencyLevel="LOCAL_ONE")
    assert "is lost with that replica" in notice


def test_other_levels_may_be_disallowed() -> None:
    """LOCAL_QUORUM is not QUORUM."""
    settings = {"write_consistency_levels_disallowed": "[QUORUM, ONE]"}
    assert said(CASSANDRA._replace(settings=settings)) == []


def test_the_ledgers_id_follows_from_its_name() -> None:
    """Every start, on every host and in every version, asks for the same one."""
    name = TableName("shop", "wal_sink_ledger")
    assert str(ledger_id(name)) == "3c4dcbdb-85df-5744-ae0c-32c1870a34bb"
    assert create_ledger(name).endswith(f" WITH id = {ledger_id(name)}")
    assert "id =" not in create_ledger(name, with_id=False)
    others = TableName("Shop", "wal_sink_ledger"), TableName("shop", "led"), TableName("a", "b")
    assert len({ledger_id(each) for each in (name, *others)}) == 4
