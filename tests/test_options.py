"""Options: how they are declared, parsed and refused, and that secrets are not shown."""

from __future__ import annotations

import json
import pickle
import re
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from wal_sink.configuration import configure
from wal_sink.errors import OptionError
from wal_sink.options import SECRET, Named, Options, SinkOptions, named, names, parse, public
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.postgresql.options import PostgresqlOptions
from wal_sink.targets.sqlalchemy.options import SqlAlchemyOptions
from wal_sink.units import with_unit
from wal_sink.unknown_names import refuse_unknown

KNOWN = """
    checkpointLocation checkpoint.oneDriver checkpoint.storageOptions wal.location wal.storageOptions
    wal.compression wal.retention wal.maxBytes wal.onFull target targets onInvalidRow epochColumn
    flush.maxRowsPerSecond flush.distributedAboveBytes operationColumn operations unavailableValue
    createTable keyColumns partitionColumns keyspace table
    cassandra.contactPoints cassandra.port cassandra.username cassandra.password cassandra.requestTimeout
    cassandra.localDatacenter cassandra.consistencyLevel cassandra.serialConsistencyLevel
    cassandra.secureConnectBundle cassandra.ssl.enabled cassandra.ssl.caCertificate
    cassandra.ssl.clientCertificate cassandra.ssl.clientKey cassandra.ssl.clientKeyPassword
    cassandra.ssl.checkHostname cassandra.ledgerTable cassandra.columns cassandra.writeMode
    cassandra.nulls cassandra.ttl cassandra.ttlColumn cassandra.expiresAtColumn
    cassandra.timestampColumn cassandra.batchBytes cassandra.batchRows cassandra.concurrency
"""
"""The options that checks outside the project use."""

GIVEN = {
    "checkpointLocation": "/data/checkpoint",
    "cassandra.contactPoints": "127.0.0.1",
    "keyspace": "shop",
    "table": "orders",
}


class Sample(Options, frozen=True, kw_only=True):
    """Options of every kind."""

    name: Annotated[str, Meta(min_length=1, description="the name of it")]
    key: Annotated[str, Meta(description="a key", extra=SECRET)] = msgspec.field(
        name="sample.secretKey", default=""
    )
    count: Annotated[int, Meta(ge=1, le=9, description="how many, 1 to 9")] = msgspec.field(
        name="sample.count", default=3
    )
    ratio: Annotated[float, Meta(gt=0, description="how much")] = msgspec.field(
        name="sample.ratio", default=0.5
    )
    strict: Annotated[bool, Meta(description="whether it is strict")] = msgspec.field(
        name="sample.strict", default=False
    )
    plain: str = msgspec.field(name="sample.plain", default="")


# --- the contract ---------------------------------------------------------------------------------


def test_every_option_is_known_in_any_case() -> None:
    """Spark passes the names in lower case, and names of its own."""
    configure(GIVEN | {"queryName": "q"})
    known = names(SinkOptions, CassandraOptions)
    assert sorted(known) == sorted(KNOWN.split())
    for spelled in (str, str.lower, str.upper):
        refuse_unknown({spelled(name): "x" for name in KNOWN.split()}, known)


@pytest.mark.parametrize("name", sorted(GIVEN))
@pytest.mark.parametrize("blank", [None, "", "  "])
def test_missing_required_option_is_refused(name: str, blank: str | None) -> None:
    """A blank value counts as missing. The error says how to give the option, and what it is for."""
    options = {key: value for key, value in GIVEN.items() if key != name}
    if blank is not None:
        options[name] = blank
    with pytest.raises(OptionError, match=f"Option {name} is missing") as caught:
        configure(options)
    assert f'.option("{name}", …): ' in caught.value.remedy


def test_options_have_the_documented_defaults() -> None:
    sink = configure(GIVEN).sink
    assert (sink.checkpoint, sink.wal_location) == ("/data/checkpoint", "")
    assert (sink.compression, sink.target) == ("lz4", "cassandra")
    assert (sink.max_bytes, sink.on_full) == (10_737_418_240, "block")
    location = configure(GIVEN).location
    assert location.checkpoint == "file:///data/checkpoint"
    assert location.logs == "file:///data/checkpoint/wal_sink"
    elsewhere = configure(GIVEN | {"wal.location": "/logs"})
    assert elsewhere.location.logs == "file:///logs"


# --- parse ----------------------------------------------------------------------------------------


def test_option_names_are_case_insensitive_and_values_are_not() -> None:
    parsed = parse({"NAME": "Ann", "SAMPLE.COUNT": "4", "sample.secretkey": "Geheim"}, Sample)
    assert parsed == Sample(name="Ann", count=4, key="Geheim")


def test_option_strings_are_parsed_to_their_types() -> None:
    """Spark passes the arguments of `option` as strings."""
    options = {"name": "7", "sample.count": "9", "sample.ratio": "2", "sample.strict": "true"}
    sample = parse(options, Sample)
    assert (sample.name, sample.count, sample.ratio, sample.strict) == ("7", 9, 2.0, True)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("sample.count", "many", " takes a whole number: how many, 1 to 9"),
        ("sample.count", "0", " takes a whole number: how many, 1 to 9"),
        ("sample.count", "10", " takes a whole number: how many, 1 to 9"),
        ("sample.count", "1.5", " takes a whole number: how many, 1 to 9"),
        ("sample.count", "", " takes a whole number: how many, 1 to 9"),
        ("sample.ratio", "0", " takes a number: how much"),
        ("sample.strict", "maybe", " takes true or false: whether it is strict"),
    ],
)
def test_option_value_that_does_not_fit_is_refused(name: str, value: str, hint: str) -> None:
    """The error has the option, its value, and the values that it accepts."""
    with pytest.raises(OptionError, match=f"Option {name} cannot be '{value}'") as caught:
        parse({"name": "x", name: value}, Sample)
    assert caught.value.remedy == f"{name}{hint}."


class Secret(Options, frozen=True, kw_only=True):
    """An option that is a secret number."""

    pin: Annotated[int, Meta(description="what opens it", extra=SECRET)] = msgspec.field(
        name="sample.pin", default=0
    )


def test_error_of_a_refused_secret_does_not_show_it() -> None:
    with pytest.raises(OptionError, match=r"sample\.pin cannot have this value") as caught:
        parse({"sample.pin": "12x4"}, Secret)
    assert "12x4" not in str(caught.value)


def test_refused_choice_lists_the_allowed_values() -> None:
    with pytest.raises(OptionError, match=r"Option wal\.compression") as caught:
        parse(GIVEN | {"wal.compression": "gzip"}, SinkOptions)
    assert "wal.compression takes lz4 or none or zstd: " in caught.value.remedy
    for value in ("lz4", "zstd", "none"):
        assert parse(GIVEN | {"wal.compression": value}, SinkOptions).compression == value


# --- refuse_unknown -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("checkpointLocaton", "checkpointLocation"),
        ("CHECKPOINTLOCATIONS", "checkpointLocation"),
        ("cassandra.contactPoint", "cassandra.contactPoints"),
        ("cassandra.consistency", "cassandra.consistencyLevel"),
        ("contactPoints", "cassandra.contactPoints"),
        ("wal.compresion", "wal.compression"),
        ("keyspaces", "keyspace"),
        ("spark.cassandra.connection.port", "cassandra.port"),
        ("nulls", "cassandra.nulls"),
        ("ttl", "cassandra.ttl"),
        ("output.ttl", "cassandra.ttl"),
        ("storageOptions", "checkpoint.storageOptions or wal.storageOptions"),
        ("output.consistency.levle", "cassandra.consistencyLevel"),
    ],
)
def test_error_of_unknown_option_suggests_the_nearest_name(typed: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"Unknown option {typed}") as caught:
        refuse_unknown({typed: "x"}, names(SinkOptions, CassandraOptions))
    assert caught.value.remedy == f"Did you mean {meant}?"


@pytest.mark.parametrize("typed", ["zzzz", "uuid"])
def test_unknown_option_without_a_near_name_lists_all(typed: str) -> None:
    """A wrong suggestion would mislead."""
    with pytest.raises(OptionError, match=f"Unknown option {typed}") as caught:
        refuse_unknown({typed: "x"}, names(SinkOptions, CassandraOptions))
    assert [name for name in KNOWN.split() if name not in caught.value.remedy] == []
    assert "queryName" not in caught.value.remedy, "it is Spark's own"


@pytest.mark.parametrize(
    ("target", "uri", "driver"),
    [
        (PostgresqlOptions, "postgresql.uri", "leave it out"),
        (SqlAlchemyOptions, "sql.url", "sql.url"),
    ],
)
def test_jdbc_options_are_refused_with_their_replacements(
    target: type[Options], uri: str, driver: str
) -> None:
    """The error has all of them, since a former user of that writer has several."""
    known = names(SinkOptions, target)
    with pytest.raises(OptionError, match="Unknown option url") as caught:
        refuse_unknown({"url": "x", "table": "t"}, known)
    assert caught.value.remedy == f"Did you mean {uri}?"
    with pytest.raises(OptionError, match="Unknown options url, user, driver, dbtable") as caught:
        refuse_unknown(dict.fromkeys(("url", "user", "driver", "dbtable"), "Geheim"), known)
    text = f"url: {uri}; user: {uri}; driver: {driver}; dbtable: table."
    assert caught.value.remedy == f"Write instead of {text}"


KAFKA = {
    "checkpointLocation": "/data/checkpoint",
    "target": "kafka",
    "kafka.bootstrap.servers": "127.0.0.1:9092",
    "topic": "orders",
}


@pytest.mark.parametrize("name", KafkaOptions.others)
@pytest.mark.parametrize("several", [False, True])
def test_options_of_other_kafka_clients_are_refused_with_remedy(name: str, several: bool) -> None:
    """The remedy names an option that exists, or says what else to do."""
    options = dict(KAFKA)
    if several:
        own = {
            f"events.{key}": value for key, value in KAFKA.items() if key != "checkpointLocation"
        }
        options = {"checkpointLocation": "/data/checkpoint", "targets": "events", **own}
    with pytest.raises(OptionError, match=f"Option {re.escape(name)}: other"):
        configure(options | {f"{'events.' * several}{name}": "1"})
    instead = KafkaOptions.others[name]
    meant = {*re.findall(r"kafka\.[\w.]*\w", instead)}
    assert meant <= {*names(KafkaOptions)}
    words = ("the sink sets", "column", "max.message.bytes", "kafka-topics.sh")
    assert meant or any(word in instead for word in words)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (
            {"kafka.acks": "1", "kafka.batch.size": "16384"},
            [
                "Options kafka.acks, kafka.batch.size: ",
                "kafka.acks: Leave it out: the sink sets it",
                "kafka.linger.ms",
            ],
        ),
        (
            {"createTable": "true"},
            [
                "the sink creates no topics of records",
                "kafka-topics.sh --bootstrap-server BROKER --create",
            ],
        ),
    ],
)
def test_error_says_what_to_do_for_each_refused_option(
    options: dict[str, str], texts: list[str]
) -> None:
    with pytest.raises(OptionError) as caught:
        configure(KAFKA | options)
    assert [text for text in texts if text not in str(caught.value)] == []


@pytest.mark.parametrize(
    "typed", ["kafka.metadata.max.age.ms", "kafka.reconnect.backoff", "kafka.zzz"]
)
def test_option_unlike_all_others_gets_no_suggestion(typed: str) -> None:
    """The first two are names of librdkafka that the sink does not have."""
    with pytest.raises(OptionError, match=f"Unknown option {typed}") as caught:
        configure(KAFKA | {typed: "1"})
    assert caught.value.remedy.startswith("Known options: ")


def test_error_of_another_targets_option_names_that_target() -> None:
    """A user may forget option `target` beside the options of the target."""
    with pytest.raises(OptionError, match=r"postgresql\.uri is for target postgresql") as caught:
        configure(GIVEN | {"postgresql.uri": "x"})
    assert '.option("target", "postgresql")' in caught.value.remedy
    with pytest.raises(OptionError, match=r"Unknown option zzzz\.uri"):
        configure(GIVEN | {"zzzz.uri": "x"})


def test_value_of_an_unknown_option_is_not_shown() -> None:
    """It may be a password under a misspelt name."""
    with pytest.raises(OptionError) as caught:
        configure(GIVEN | {"cassandra.pasword": "Geheim"})
    assert "Geheim" not in str(caught.value)
    assert "cassandra.password" in caught.value.remedy


# --- secrets --------------------------------------------------------------------------------------


def test_public_options_have_no_secrets_and_no_empty_values() -> None:
    """The state of a log has the options of a run in this form, and they are parsed back."""
    assert public(Sample(name="Ann", key="Geheim", count=4)) == {
        "name": "Ann",
        "sample.count": "4",
        "sample.ratio": "0.5",
        "sample.strict": "False",
    }
    assert "Geheim" not in repr(Sample(name="Ann", key="Geheim"))
    sample = Sample(name="Ann", count=4, strict=True)
    assert parse(public(sample), Sample) == sample


def test_password_of_the_cassandra_target_is_a_secret() -> None:
    """The target gets the password, also in tasks. The state of the log and the texts do not have it."""
    secret = {"cassandra.username": "ann", "cassandra.password": "Geheim"}
    configuration = configure(GIVEN | secret)
    options = configuration.destinations[0].target.options
    assert isinstance(options, CassandraOptions)
    assert options.password == "Geheim"
    assert "Geheim" not in json.dumps(configuration.public)
    assert "Geheim" not in repr(configuration)
    assert configuration.public["cassandra.username"] == "ann"
    copy = pickle.loads(pickle.dumps(configuration))
    assert (copy.sink, copy.location) == (configuration.sink, configuration.location)
    assert copy.destinations[0].target.options == options


UNITS: list[tuple[str, str, dict[str, float]]] = [
    (
        "wal.retention",
        "retention",
        {"90": 90, "1.5": 1.5, "10s": 10, "5m": 300, "1h": 3600, "2 D": 172_800},
    ),
    ("wal.maxBytes", "max_bytes", {"4096": 4096, "64m": 64 * 1024**2, "10GB": 10 * 1024**3}),
    ("flush.distributedAboveBytes", "distributed_above_bytes", {"-1": -1, "1.5k": 1536}),
]


@pytest.mark.parametrize(
    ("option", "field", "written", "meant"),
    [(option, field, *item) for option, field, cases in UNITS for item in cases.items()],
)
def test_durations_and_sizes_take_a_suffix(
    option: str, field: str, written: str, meant: float
) -> None:
    parsed = parse({"checkpointLocation": "/c", option: written}, SinkOptions)
    assert getattr(parsed, field) == meant


@pytest.mark.parametrize(
    ("option", "written", "takes"),
    [
        ("wal.retention", "1 fortnight", "a number of seconds, or a duration such as 10s, 5m, 1h"),
        ("wal.retention", "-1h", "a number of seconds"),
        ("wal.retention", "inf", "a number of seconds"),
        ("wal.maxBytes", "64 apples", "a number of bytes, or a size such as 64k, 64m, 10g"),
        ("wal.maxBytes", "0g", "a number of bytes"),
        ("wal.maxBytes", "0.3b", "a number of bytes"),
    ],
)
def test_error_of_wrong_duration_or_size_quotes_it(option: str, written: str, takes: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse({"checkpointLocation": "/c", option: written}, SinkOptions)
    assert repr(written) in str(refused.value)
    assert takes in str(refused.value)


def test_option_with_a_column_is_recognized_in_any_case() -> None:
    """Without a column, the name is not an option."""
    for written in ("iceberg.catalog.S3.Region", "ICEBERG.CATALOG.s3.region"):
        names = named(written, ["table", "iceberg.catalog.<column>"])
        assert names == Named("iceberg.catalog.<column>", "s3.region")
    assert named("iceberg.catalog.", ["iceberg.catalog.<column>"]) is None


@pytest.mark.parametrize(
    ("number", "text"), [(0.1, "100ms"), (0.5, "500ms"), (90, "90s"), (7_200, "2h"), (0, "0")]
)
def test_default_is_shown_with_its_largest_whole_suffix(number: float, text: str) -> None:
    assert with_unit(number, "seconds") == text
