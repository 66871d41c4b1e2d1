"""The options of the target `postgresql`: the URI and its password, and names of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal_sink.admin.confirmation import refuse_unconfirmed_place
from wal_sink.configuration import configure
from wal_sink.errors import OptionError
from wal_sink.options import parse, public
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget

URI = "postgresql://flusher@db.example:5432/shop?sslmode=verify-full"


def options(**options: str) -> PostgresqlOptions:
    """Parse options; an underscore in a name stands for a dot."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    return parse({"postgresql.uri": URI, "table": "orders"} | named, PostgresqlOptions)


@pytest.mark.parametrize(
    ("uri", "shown", "password"),
    [
        (URI, URI, ""),
        ("postgresql://u:p%40ss@h/d", "postgresql://u@h/d", "p@ss"),
        ("postgres://u:@h/d", "postgres://u@h/d", ""),
        (
            "postgresql://u:s3@h1:1,h2:2/d?target_session_attrs=read-write",
            "postgresql://u@h1:1,h2:2/d?target_session_attrs=read-write",
            "s3",
        ),
        (
            "postgresql:///d?host=/var/run/postgresql",
            "postgresql:///d?host=/var/run/postgresql",
            "",
        ),
        ("postgresql://u:s@[::1]:5432/d", "postgresql://u@[::1]:5432/d", "s"),
        ("postgresql://u:s@[h/d", "postgresql://u@[h/d", "s"),
        ("postgresql://u:s#t@h/d", "postgresql://u@h/d", "s#t"),
    ],
)
def test_password_is_taken_out_of_the_uri(uri: str, shown: str, password: str) -> None:
    parameters = options(postgresql_uri=uri)
    assert (parameters.uri, parameters.password) == (shown, password)


def test_password_is_never_shown(tmp_path: Path) -> None:
    raw = {
        "checkpointLocation": tmp_path.as_uri(),
        "target": "postgresql",
        "postgresql.uri": "postgresql://u:hush@h/d",
        "table": "orders",
    }
    configuration = configure(raw)
    target = configuration.destinations[0].target
    assert isinstance(target, PostgresqlTarget)
    assert target.options.password == "hush"
    for shown in (configuration.public, target, target.description, target.shape, target.options):
        assert "hush" not in str(shown)
    assert public(target.options)["postgresql.uri"] == "postgresql://u@h/d"


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("host=h password=hush", "not a URL"),
        ("postgresql://u@h/d?password=hush", "the parameter password"),
        ("postgresql://u@h/d?sslpassword=hush", "the parameter sslpassword"),
    ],
)
def test_refused_uri_is_not_shown(uri: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        options(postgresql_uri=uri)
    assert "hush" not in str(caught.value)


def test_different_passwords_in_uri_and_option_are_refused() -> None:
    with pytest.raises(OptionError, match="another one"):
        options(postgresql_uri="postgresql://u:a@h/d", postgresql_password="b")
    assert options(postgresql_uri="postgresql://u:a@h/d", postgresql_password="a").password == "a"


def test_uri_named_by_the_log_gets_no_password() -> None:
    logged = {"postgresql.uri": URI, "table": "orders"}
    refuse_unconfirmed_place(PostgresqlOptions, logged, {}, {})
    with pytest.raises(OptionError, match="a place that only the log names"):
        refuse_unconfirmed_place(
            PostgresqlOptions, logged, {}, {"WAL_SINK_POSTGRESQL_PASSWORD": "hush"}
        )


@pytest.mark.parametrize(
    ("table", "ledger", "data_name", "ledger_name"),
    [
        ("orders", "", '"public"."orders"', '"public"."wal_sink_ledger"'),
        ("shop.Orders", "", '"shop"."Orders"', '"shop"."wal_sink_ledger"'),
        ("shop.orders", "l", '"shop"."orders"', '"shop"."l"'),
        ("shop.orders", "ops.l", '"shop"."orders"', '"ops"."l"'),
        ('a"b.c', "", '"a""b"."c"', '"a""b"."wal_sink_ledger"'),
    ],
)
def test_quoted_names_keep_their_case(
    table: str, ledger: str, data_name: str, ledger_name: str
) -> None:
    target = PostgresqlTarget(options(table=table, postgresql_ledgerTable=ledger))
    assert (target.table_name, target.ledger_name) == (data_name, ledger_name)


@pytest.mark.parametrize("table", ["a.b.c", "a,b", ".t", "s.", '"T"', "s.`T`"])
def test_table_option_that_is_not_a_name_is_refused(table: str) -> None:
    with pytest.raises(OptionError, match="table"):
        options(table=table)


@pytest.mark.parametrize("option", ["table", "postgresql_ledgerTable"])
@pytest.mark.parametrize("name", ["{}", "{}.t"])
def test_name_that_postgresql_would_cut_is_refused(option: str, name: str) -> None:
    """Later starts would not find the table by its whole name."""
    longest = "ä" * 31 + "x"
    options(**{option: name.format(longest)})
    with pytest.raises(OptionError, match="more than 63 bytes"):
        options(**{option: name.format(longest + "x")})


def test_ledger_in_the_table_of_rows_is_refused() -> None:
    with pytest.raises(OptionError, match="a table of its own"):
        options(table="shop.wal_sink_ledger")
