"""Options in the log get no secret, and no import, without the operator's confirmation."""

from __future__ import annotations

import shlex

import pytest

from wal_sink.admin.confirmation import OPTIONS_VARIABLE, refuse_unconfirmed_place
from wal_sink.cli.arguments import option_values
from wal_sink.errors import OptionError
from wal_sink.options import fields, lowered, parse, public
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


def refused(
    logged: dict[str, str], options: dict[str, str], environment: dict[str, str]
) -> OptionError | None:
    """Return the error of refused options; None if the options may be used."""
    try:
        refuse_unconfirmed_place(CassandraOptions, lowered(logged), lowered(options), environment)
    except OptionError as error:
        return error
    return None


def test_options_that_direct_a_connection_are_marked_connects() -> None:
    """A new option `cassandra.ssl.*` without the mark would send a secret to a host that the log names."""
    declared = fields(CassandraOptions)
    assert {field.name for field in declared if "connects" in field.extra} == CONNECTS
    tls = {field.name for field in declared if field.name.startswith("cassandra.ssl.")}
    assert tls - {field.name for field in declared if "secret" in field.extra} <= CONNECTS


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
def test_secret_is_not_sent_without_confirmation(
    options: dict[str, str], environment: dict[str, str]
) -> None:
    """The refusal has the options to confirm, and not the secret."""
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


@pytest.mark.parametrize("name", sorted(CONNECTS))
def test_host_port_and_tls_are_confirmed_separately(name: str) -> None:
    value = {"cassandra.ssl.checkHostname": "false", "cassandra.ssl.enabled": "true"}.get(name, "7")
    error = refused({name: value}, {}, PASSWORD)
    assert error is not None
    assert f"--option {name}={value}" in error.remedy
    others = dict.fromkeys(CONNECTS - {name}, "x")
    error = refused(others | {name: value}, others, PASSWORD)
    assert error is not None
    assert error.remedy.count("--option") == 1
    assert refused({name: value}, {name.upper(): "other"}, PASSWORD) is None


def test_default_value_in_the_log_needs_no_confirmation() -> None:
    options = {"cassandra.contactPoints": "10.0.0.1", "keyspace": "ks", "table": "t"}
    recorded = public(parse(options, CassandraOptions))
    assert recorded["cassandra.port"] == "9042"
    assert refused(recorded, {"cassandra.contactPoints": "10.0.0.1"}, PASSWORD) is None


def test_log_text_is_escaped_for_terminal_and_shell() -> None:
    evil = "x\x1b[2J; rm -rf ~"
    error = refused({"cassandra.contactPoints": evil}, {}, PASSWORD)
    assert error is not None
    assert "\x1b" not in str(error)
    assert "--option 'cassandra.contactPoints=x\\x1b[2J; rm -rf ~'" in error.remedy


def test_environment_variable_adds_options_to_every_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The variable is quoted as for a shell. An option of the command overrides it, in any case."""
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
