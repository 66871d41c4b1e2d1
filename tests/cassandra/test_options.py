"""The options of the Cassandra target."""

from __future__ import annotations

import itertools
import json
import pickle
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cassandra.certificates import Certificates
from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.model.plan import plan_key
from wal_sink.options import parse, public
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.options import ENVIRONMENT, login, primary_key
from wal_sink.targets.ddl import Layout, TableOptions

TABLE = {"keyspace": "shop", "table": "orders"}
MINIMUM = TABLE | {"cassandra.contactPoints": "10.0.0.1"}
TTLS = {"cassandra.ttl": "9", "cassandra.ttlColumn": "ttl", "cassandra.expiresAtColumn": "until"}


def options(**options: str) -> CassandraOptions:
    return parse(
        MINIMUM | {key.replace("__", "."): value for key, value in options.items()},
        CassandraOptions,
    )


def test_contact_points_are_separated_and_trimmed() -> None:
    assert options(cassandra__contactPoints="a, b ,::1,").hosts == ("a", "b", "::1")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("cassandra.port", "0", "cassandra.port"),
        ("cassandra.requestTimeout", "0", "cassandra.requestTimeout"),
        ("cassandra.requestTimeout", "nan", "cassandra.requestTimeout"),
        ("cassandra.nulls", "tombstone", "unset.*write"),
        ("cassandra.batchBytes", "1023", "auto, or 1024 to 1048576"),
        ("cassandra.batchRows", "0", "auto, or 1 to 65535"),
        ("cassandra.concurrency", "0", "auto, or 1 to 1024"),
        ("cassandra.consistencyLevel", "ANY", "a hint"),
        ("cassandra.consistencyLevel", "LOCAL_QUORAM", "LOCAL_QUORAM.*\n.*LOCAL_QUORUM"),
        ("cassandra.consistencyLevel", "SERIAL", "LOCAL_QUORUM"),
        ("cassandra.serialConsistencyLevel", "QUORUM", "SERIAL or LOCAL_SERIAL"),
        ("cassandra.ledgerTable", "a.b.c", "cassandra.ledgerTable"),
        ("cassandra.ledgerTable", "led ger", "cassandra.ledgerTable"),
        ("cassandra.contactPoints", " , ", "names no host"),
        ("cassandra.contactPoints", "a:9042", "cassandra.port"),
        ("cassandra.contactPoints", "[::1]:9042", "cassandra.port"),
        ("cassandra.contactPoints", "a b", "comma-separated"),
        ("cassandra.contactPoints", "me:S3CRET@host", "cassandra.password"),
        ("cassandra.contactPoints", "a, s.cassandra.cosmos.azure.com", "one write timestamp"),
        ("table", "orders,refunds", "cannot be a name"),
        ("table", "shop.orders", r'"keyspace", "shop"\)\.option\("table", "orders"'),
        ("table", '"Orders"', "without quotes"),
        ("table", "größe", "letters, digits and underscores"),
        ("keyspace", "my-shop", "letters, digits and underscores"),
        ("cassandra.ssl.enabled", "perhaps", "true or false"),
    ],
)
def test_wrong_option_is_refused_with_a_remedy(option: str, value: str, says: str) -> None:
    with pytest.raises(OptionError, match=rf"(?s){says}") as refused:
        parse(MINIMUM | {option: value}, CassandraOptions)
    assert option in str(refused.value)
    assert refused.value.remedy
    assert "S3CRET" not in str(refused.value)


BUNDLE = {"cassandra.secureConnectBundle": "/b.zip"}
TLS = {"cassandra.ssl.enabled": "true"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (MINIMUM | BUNDLE, "contactPoints is given beside cassandra.secureConnectBundle"),
        (TABLE | BUNDLE | TLS, "ssl.enabled is given beside cassandra.secureConnectBundle"),
        (MINIMUM | {"cassandra.ssl.caCertificate": "/ca"}, "without cassandra.ssl.enabled"),
        (MINIMUM | {"cassandra.ssl.checkHostname": "false"}, "without cassandra.ssl.enabled"),
        (MINIMUM | TLS | {"cassandra.ssl.clientKey": "/key"}, "without .*clientCertificate"),
        *[
            (MINIMUM | dict(pair), f"{pair[1][0]} is given beside {pair[0][0]}")
            for pair in itertools.combinations(TTLS.items(), 2)
        ],
    ],
)
def test_options_that_exclude_or_need_others_are_refused(
    options: dict[str, str], says: str
) -> None:
    assert parse(TABLE | BUNDLE, CassandraOptions).where == "/b.zip"
    with pytest.raises(OptionError, match=says) as refused:
        parse(options, CassandraOptions)
    assert refused.value.remedy


# --- login ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variables of this machine."""
    for variable in ENVIRONMENT.values():
        monkeypatch.delenv(variable, raising=False)


def test_login_comes_from_options_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option has precedence, and the environment is read at each login."""
    assert login(options()) is None
    asked = options(cassandra__username="spark")
    monkeypatch.setenv(ENVIRONMENT["password"], "one")
    assert login(asked) == ("spark", "one")
    monkeypatch.setenv(ENVIRONMENT["password"], "two")
    assert login(asked) == ("spark", "two")
    assert login(options(cassandra__username="spark", cassandra__password="three")) == (
        *("spark", "three"),
    )
    monkeypatch.setenv(ENVIRONMENT["username"], "vault")
    assert login(options()) == ("vault", "two")


@pytest.mark.parametrize(
    ("arguments", "missing"), [("username", "password"), ("password", "username")]
)
def test_username_without_password_is_refused_at_connect(arguments: str, missing: str) -> None:
    """The password may be set in the environment after the start."""
    half = options(**{f"cassandra__{arguments}": "hunter2"})
    with pytest.raises(OptionError, match=f"without cassandra.{missing}") as refused:
        login(half)
    assert ENVIRONMENT[missing] in refused.value.remedy
    assert "hunter2" not in str(refused.value)


def test_tasks_get_secrets_of_the_present_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password travels with the target, and is not shown."""
    target = CassandraTarget(options(cassandra__username="spark"))
    monkeypatch.setenv(ENVIRONMENT["password"], "hunter2")
    sent = pickle.dumps(target.for_tasks())
    monkeypatch.setenv(ENVIRONMENT["password"], "stale")
    arrived = pickle.loads(sent)
    assert login(arrived.options) == ("spark", "hunter2")
    assert "hunter2" not in f"{arrived} {public(arrived.options)} {public(target.options)}"


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["caCertificate", "clientCertificate"])
def test_unusable_certificate_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    arguments = options(**{"cassandra__ssl__enabled": "true", f"cassandra__ssl__{name}": str(path)})
    for content in (None, b"0x30"):
        if content:
            path.write_bytes(content)
        with pytest.raises(OptionError, match="cannot be used") as refused:
            connect(arguments)
        assert f"cassandra.ssl.{name}: {path}" in refused.value.what


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLS:DeprecationWarning")  # the driver's
def test_unusable_bundle_is_refused(tmp_path: Path) -> None:
    """The driver opens the bundle, and connects to the address in it."""
    path = tmp_path / "bundle.zip"
    options = parse(TABLE | {"cassandra.secureConnectBundle": str(path)}, CassandraOptions)
    for content in (None, b"no zip"):
        if content:
            path.write_bytes(content)
        with pytest.raises(OptionError, match=r"bundle\.zip is not a zip file"):
            connect(options)
    certificates = Certificates(tmp_path, "127.0.0.1")
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("config.json", json.dumps({"host": "127.0.0.1", "port": 1}))
        for name, file in {"ca.crt": "ca", "cert": "client", "key": "client_key"}.items():
            opened.writestr(name, getattr(certificates, file).read_text())
    with pytest.raises(TargetUnavailable, match=r"bundle\.zip.*metadata service"):
        connect(options)


DESCRIPTIONS = [
    ({"operationColumn": "op"}, "deletes", "whose op is delete"),
    ({"operationColumn": "o"}, "deletes", "whose o is delete"),
    ({"operationColumn": "o", "operations": '{"U": "upsert", "D": "delete"}'}, "deletes", "o is D"),
    ({"cassandra.columns": '{"orderId": "id"}'}, "columns", "orderId as id"),
    ({"cassandra.ttl": "60"}, "ttl", "60 s"),
    ({"cassandra.ttl": "61"}, "ttl", "61 s"),
    ({"cassandra.ttlColumn": "a"}, "ttl", "cassandra.ttlColumn"),
    ({"cassandra.expiresAtColumn": "a"}, "ttl", "cassandra.expiresAtColumn"),
    ({"cassandra.timestampColumn": "a"}, "newest", "cassandra.timestampColumn"),
    ({"cassandra.writeMode": "update"}, "write", "UPDATE"),
]
"""Options about rows; the heading under which a start describes each; and a part of the text."""


def test_option_about_rows_changes_the_plan_key() -> None:
    """An option with its default value does not change the key, so a running query keeps its plan."""

    def target(options: dict[str, str]) -> CassandraTarget:
        return CassandraTarget(parse(MINIMUM | options, CassandraOptions))

    plain = target({})
    assert plain.shape == {"keyspace": "shop", "table": "orders"}
    assert {heading for _, heading, _ in DESCRIPTIONS} & {*plain.description} == {"newest"}
    for arguments, heading, words in DESCRIPTIONS:
        assert words in target(arguments).description[heading]
    schema = pa.schema([("id", pa.int64())])
    keys = {
        plan_key(schema, "cassandra", target(arguments).shape) for arguments, _, _ in DESCRIPTIONS
    }
    assert len({plan_key(schema, "cassandra", plain.shape), *keys}) == len(DESCRIPTIONS) + 1
    defaults = {"cassandra.writeMode": "insert"}
    assert target(defaults).shape == plain.shape


# --- the key of a new table ---------------------------------------------------------------------


def layout(key: str, partition: str) -> Layout:
    options = TableOptions(create_table=True, key_columns=key, partition_columns=partition)
    return options.layout


@pytest.mark.parametrize(
    ("key", "partition", "result"),
    [
        ("id", "", (["id"], [])),
        ("customer, at", "", (["customer"], ["at"])),
        ("shop, at, day, n", "day,shop", (["day", "shop"], ["at", "n"])),
        ("shop, day", "shop, day", (["shop", "day"], [])),
    ],
)
def test_partition_key_is_the_first_column_by_default(
    key: str, partition: str, result: tuple[list[str], list[str]]
) -> None:
    options = primary_key(layout(key, partition))
    assert ([*options.partition], [*options.key]) == (result[0], result[0] + result[1])


@pytest.mark.parametrize(
    ("key", "partition", "text"),
    [("", "", "names no column"), ("", "a", "names no column"), ("a", "b", "names b")],
)
def test_empty_key_or_partition_outside_key_is_refused(key: str, partition: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        primary_key(layout(key, partition))
