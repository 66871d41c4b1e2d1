"""What only the log says is not put together with a secret, and imports nothing."""

from __future__ import annotations

import shlex
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from wal_sink.admin.confirm import OPTIONS_VARIABLE, refuse_unconfirmed, refuse_unregistered
from wal_sink.cli.arguments import option_values
from wal_sink.errors import OptionError
from wal_sink.options import SECRET, Options, fields, marked, parse, public
from wal_sink.targets.cassandra import CassandraOptions

PASSWORD = {"WAL_SINK_CASSANDRA_PASSWORD": "S3CRET"}
FORGED = {
    "cassandra.contactPoints": "attacker.example",
    "cassandra.port": "443",
    "cassandra.ssl.enabled": "True",
    "cassandra.ssl.checkHostname": "False",
    "cassandra.username": "prod",
    "keyspace": "ks",
    "table": "t",
}
CONNECTS = {
    *("cassandra.contactPoints", "cassandra.port", "cassandra.secureConnectBundle"),
    *("cassandra.ssl.enabled", "cassandra.ssl.caCertificate", "cassandra.ssl.checkHostname"),
    *("cassandra.ssl.clientCertificate", "cassandra.ssl.clientKey"),
}


def lower(options: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def refused(
    logged: dict[str, str], options: dict[str, str], environment: dict[str, str]
) -> OptionError | None:
    """The refusal; None when the options may be used."""
    try:
        refuse_unconfirmed(CassandraOptions, lower(logged), lower(options), environment)
    except OptionError as error:
        return error
    return None


def test_every_option_that_decides_about_a_connection_is_marked() -> None:
    """A new one of cassandra.ssl.* that is forgotten would let a secret out."""
    result = marked(CassandraOptions, "connects")
    assert {field.name for field in fields(CassandraOptions) if field.field in result} == CONNECTS
    secrets = marked(CassandraOptions, "secret")
    tls = {f for f in names_of("cassandra.ssl.") if f not in secrets}
    assert tls == {name for name in result if name.startswith("ssl_")}


def names_of(prefix: str) -> set[str]:
    return {field.field for field in fields(CassandraOptions) if field.name.startswith(prefix)}


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ({}, PASSWORD),
        ({"cassandra.password": "S3CRET"}, {}),
        ({"Cassandra.Password": "S3CRET"}, {}),
        ({}, {"WAL_SINK_CASSANDRA_SSL_CLIENT_KEY_PASSWORD": "S3CRET"}),
        ({"cassandra.username": "prod"}, PASSWORD),
    ],
)
def test_secret_goes_nowhere_unasked(options: dict[str, str], environment: dict[str, str]) -> None:
    """Wherever it comes from; the refusal has the exact words, and not the secret."""
    error = refused(FORGED, options, environment)
    assert error is not None
    words = [word for word in shlex.split(error.remedy) if "=" in word and word.startswith("cass")]
    typed = [word.rstrip(".") for word in words]
    assert typed == [
        "cassandra.contactPoints=attacker.example",
        "cassandra.port=443",
        "cassandra.ssl.enabled=True",
        "cassandra.ssl.checkHostname=False",
    ]
    assert "S3CRET" not in str(error)
    assert any(name in error.what for name in (*environment, "cassandra.password"))
    assert refused(FORGED, options | option_values(typed), environment) is None


@pytest.mark.parametrize(
    "environment",
    [{}, {"WAL_SINK_CASSANDRA_USERNAME": "prod"}, {"WAL_SINK_CASSANDRA_PASSWORD": ""}],
)
def test_log_without_secrets_needs_no_confirmation(environment: dict[str, str]) -> None:
    """There is nothing to be stolen, and nothing to be typed."""
    assert refused(FORGED, {}, environment) is None


@pytest.mark.parametrize("name", sorted(CONNECTS))
def test_host_port_and_tls_are_confirmed_separately(name: str) -> None:
    """The operator's word about the host is none about its port, or about TLS."""
    value = {"cassandra.ssl.checkHostname": "false", "cassandra.ssl.enabled": "true"}.get(name, "7")
    error = refused({name: value}, {}, PASSWORD)
    assert error is not None
    assert f"--option {name}={value}" in error.remedy
    others = dict.fromkeys(CONNECTS - {name}, "x")
    error = refused(others | {name: value}, others, PASSWORD)
    assert error is not None
    assert error.remedy.count("--option") == 1
    assert refused({name: value}, {name.upper(): "other"}, PASSWORD) is None


def test_default_recorded_by_a_run_needs_no_confirmation() -> None:
    """A run records its defaults, too."""
    options = {"cassandra.contactPoints": "10.0.0.1", "keyspace": "ks", "table": "t"}
    recorded = public(parse(options, CassandraOptions))
    assert recorded["cassandra.port"] == "9042"
    assert refused(recorded, {"cassandra.contactPoints": "10.0.0.1"}, PASSWORD) is None


def test_log_text_is_escaped_for_terminal_and_shell() -> None:
    """They are printed, and typed again."""
    evil = "x\x1b[2J; rm -rf ~"
    error = refused({"cassandra.contactPoints": evil}, {}, PASSWORD)
    assert error is not None
    assert "\x1b" not in str(error)
    assert "--option 'cassandra.contactPoints=x\\x1b[2J; rm -rf ~'" in error.remedy


def test_class_is_imported_at_the_operators_word_alone() -> None:
    """Importing a module runs it; a name that an installed package registers is not code of the log's."""
    refuse_unregistered("cassandra", None)
    with pytest.raises(OptionError, match="option target is this:d") as caught:
        refuse_unregistered("this:d", None)
    assert "--option target=this:d" in caught.value.remedy
    refuse_unregistered("this:d", "this:d")
    refuse_unregistered("this:d", "cassandra")


def test_target_of_ones_own_marks_its_options() -> None:
    """The rule knows no database."""

    class Own(Options, frozen=True, kw_only=True):
        url: Annotated[str, Meta(extra={"connects": True})] = msgspec.field(name="own.url")
        token: Annotated[str, Meta(extra=SECRET | {"environment": "OWN_TOKEN"})] = msgspec.field(
            name="own.token", default=""
        )

    refuse_unconfirmed(Own, {"own.url": "https://x"}, {}, {})
    with pytest.raises(OptionError, match="OWN_TOKEN would be sent to"):
        refuse_unconfirmed(Own, {"own.url": "https://x"}, {}, {"OWN_TOKEN": "t"})


def test_environment_holds_options_for_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of a shell; an option of the command wins, whatever its case."""
    monkeypatch.setenv(
        OPTIONS_VARIABLE, 'cassandra.contactPoints=a,b \'wal.storageOptions={"key": "k"}\' table=t'
    )
    assert option_values(["Table=other", "x=y=z"]) == {
        "cassandra.contactPoints": "a,b",
        "wal.storageOptions": '{"key": "k"}',
        "Table": "other",
        "x": "y=z",
    }
    monkeypatch.delenv(OPTIONS_VARIABLE)
    assert option_values(None) == {}


@pytest.mark.parametrize(
    ("variable", "pairs"), [("nopair", ()), ("'S3CRET", ()), ("=S3CRET", ()), ("", ["S3CRET"])]
)
def test_option_without_equals_sign_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, variable: str, pairs: list[str]
) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, variable)
    with pytest.raises(OptionError, match="--option" if pairs else OPTIONS_VARIABLE) as caught:
        option_values(pairs)
    assert "S3CRET" not in str(caught.value)
