"""Statements, error codes and types of the databases of target `sql`, without a server."""

from __future__ import annotations

import msgspec
import pytest

from wal_sink.model.plan import Column, Plan
from wal_sink.targets.casts import KEY
from wal_sink.targets.ddl import unquoted
from wal_sink.targets.sql.types import arrow_type
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget
from wal_sink.targets.sqlalchemy.dialects import DIALECTS, GENERIC, words_of
from wal_sink.targets.sqlalchemy.write import delete

COLUMNS = tuple(
    Column(name=name, source="int64", type="bigint", role="regular") for name in ("k", "v")
)
PLAN = Plan(key="x", target="sql", table='"t"', columns=COLUMNS, details={KEY: ["k"]})


URLS = {"mysql": "mysql+pymysql://db/shop", "sqlite": "sqlite:////shop.db"}


def target(name: str) -> SqlAlchemyTarget:
    """Return a target that does not connect."""
    return SqlAlchemyTarget(SqlAlchemyOptions(url=URLS[name], table="t"))


def test_percent_in_a_name_is_doubled_for_some_drivers() -> None:
    """A driver with the placeholder %s reads a % in a name, too."""
    plan = msgspec.structs.replace(PLAN, details={KEY: ["k%"]})
    assert delete(target("mysql"), plan) == 'DELETE FROM "t" WHERE `k%%` = %s'
    assert delete(target("sqlite"), plan) == 'DELETE FROM "t" WHERE "k%" = ?'


@pytest.mark.parametrize("quoted", ['"shop"."a.b""c"', '`shop`.`a.b"c`', 'shop.a.b"c'])
def test_table_in_errors_has_no_quotes(quoted: str) -> None:
    """The quotes differ from database to database."""
    assert unquoted(quoted) == 'shop.a.b"c'
    assert unquoted("shop.`my-orders`") == "shop.`my-orders`"


class DatabaseError(Exception):
    """The base of a driver's errors, by PEP 249."""


class IntegrityError(DatabaseError):
    """A driver's error of a constraint."""


class OperationalError(DatabaseError):
    """A driver's error of a lost connection."""


@pytest.mark.parametrize(
    ("number", "kind", "refuses"),
    [
        (1213, "retry", False),
        (1114, "retry", False),
        (1030, "retry", False),
        (3819, "fatal", True),
        (1146, "fatal", False),
    ],
)
def test_mysql_error_is_classified_by_its_number(number: int, kind: str, refuses: bool) -> None:
    """Any other number is fatal, and refuses no row."""
    error = DatabaseError(number)
    assert DIALECTS["mysql"].error_codes.classify(error) == kind
    assert DIALECTS["mysql"].error_codes.refuses(error) is refuses


@pytest.mark.parametrize(
    ("error", "kind", "refuses"),
    [
        (OperationalError(), "retry", False),
        (IntegrityError(), "fatal", True),
        (DatabaseError(), "fatal", False),
    ],
)
def test_driver_error_is_classified_by_its_pep_249_class(
    error: Exception, kind: str, refuses: bool
) -> None:
    """The database has no dialect, so nothing else is known of its errors."""
    assert GENERIC.error_codes.classify(error) == kind
    assert GENERIC.error_codes.refuses(error) is refuses


def test_type_text_of_a_catalogue_is_parsed() -> None:
    """The texts have numbers, signs, lengths and time zones."""
    for backend, text, words, arrow in (
        ("mysql", "INTEGER(10) UNSIGNED", "integer(10) unsigned", "uint32"),
        ("mysql", 'VARCHAR(50) COLLATE "utf8mb4_bin"', "varchar(50)", "string"),
        (
            "unknown",
            "TIMESTAMP(6) WITH TIME ZONE",
            "timestamp(6) with time zone",
            "timestamp[us, tz=UTC]",
        ),
        ("unknown", "NUMERIC(10, 2)", "numeric(10,2)", "decimal128(10, 2)"),
        ("unknown", "GEOMETRY", "geometry", "None"),
        ("mysql", "FLOAT(7, 4)", "float(7,4)", "None"),
        ("mysql", "DOUBLE", "double", "double"),
        ("duckdb", "DECIMAL(5,2)[]", "decimal(5,2)[]", "list<item: decimal128(5, 2)>"),
        ("duckdb", "BIGINT[]", "bigint[]", "list<item: int64>"),
    ):
        assert words_of(text) == words
        types = DIALECTS.get(backend, GENERIC).types
        assert str(arrow_type(types, words)) == arrow
