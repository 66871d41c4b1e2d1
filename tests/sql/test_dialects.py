"""The statements and error codes of databases that do not run here: SQL Server, Oracle, MySQL."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from wal_sink.model.plan import Column, Plan
from wal_sink.targets.arrow_values import cast_values
from wal_sink.targets.casts import KEY
from wal_sink.targets.names import quote, unquoted
from wal_sink.targets.sqlalchemy.catalogue import unique_index
from wal_sink.targets.sqlalchemy.dialects import DIALECTS
from wal_sink.targets.sqlalchemy.types import arrow_type, parse, words_of
from wal_sink.targets.sqlalchemy.write import delete, statement

COLUMNS = tuple(
    Column(name=name, source="int64", type="bigint", role="regular") for name in ("k", "v")
)
PLAN = Plan(key="x", target="sql", table='"t"', columns=COLUMNS, details={KEY: ["k"]})


MERGE = (
    ' ON (there."k" = new."k") WHEN MATCHED THEN UPDATE SET there."v" = new."v"'
    ' WHEN NOT MATCHED THEN INSERT ("k", "v") VALUES (new."k", new."v")'
)
INSERT = 'INSERT INTO "t" ("k", "v") VALUES '
UPSERTS = {
    "mssql": 'MERGE INTO "t" WITH (HOLDLOCK) AS there USING (SELECT ? AS "k", ? AS "v") AS new'
    f"{MERGE};",
    "oracle": f'MERGE INTO "t" there USING (SELECT :1 AS "k", :1 AS "v" FROM dual) new{MERGE}',
    "mysql": INSERT + '(%s, %s) ON DUPLICATE KEY UPDATE "v" = VALUES("v")',
    "sqlite": INSERT + '(?, ?) ON CONFLICT ("k") DO UPDATE SET "v" = excluded."v"',
}


@pytest.mark.parametrize("name", UPSERTS)
def test_a_row_replaces_the_one_of_its_key(name: str) -> None:
    """As many values as the DataFrame has columns, in their order."""
    assert statement(DIALECTS[name], quote, PLAN) == UPSERTS[name]


def test_a_table_of_its_key_alone_changes_nothing() -> None:
    """Each database has another form for it."""
    alone = msgspec.structs.replace(PLAN, columns=COLUMNS[:1])
    found = {name: statement(dialect, quote, alone) for name, dialect in DIALECTS.items()}
    assert "DO NOTHING" in found["postgresql"]
    assert found["mysql"].endswith('UPDATE "k" = VALUES("k")')
    assert "WHEN MATCHED" not in found["mssql"].replace("WHEN NOT MATCHED", "")


def test_a_percent_is_doubled_where_the_driver_reads_it() -> None:
    """In a name, beside the parameters."""
    of = msgspec.structs.replace(PLAN, details={KEY: ["k%"]})
    assert delete(DIALECTS["mysql"], quote, of) == 'DELETE FROM "t" WHERE "k%%" = %s'
    assert delete(DIALECTS["sqlite"], quote, of) == 'DELETE FROM "t" WHERE "k%" = ?'


@pytest.mark.parametrize(
    "quoted", ['"shop"."a.b""c"', '`shop`.`a.b"c`', '[shop].[a.b"c]', 'shop.a.b"c']
)
def test_errors_name_a_table_without_its_quotes(quoted: str) -> None:
    """As an option has it, whichever quotes a database uses."""
    assert unquoted(quoted) == 'shop.a.b"c'


class DatabaseError(Exception):
    """What each driver has, by PEP 249."""


class OracleCode:
    """What an error of oracledb holds."""

    def __init__(self, code: str) -> None:
        self.full_code = code


@pytest.mark.parametrize(
    ("name", "argument", "kind", "refuses"),
    [
        ("mssql", "40001", "retry", False),
        ("mssql", "23000", "fatal", True),
        ("mssql", 1205, "retry", False),
        ("mssql", "42S02", "fatal", False),
        ("oracle", OracleCode("ORA-00060"), "retry", False),
        ("oracle", OracleCode("ORA-12541"), "retry", False),
        ("oracle", OracleCode("ORA-12899"), "fatal", True),
        ("oracle", OracleCode("ORA-20001"), "fatal", True),
        ("oracle", OracleCode("ORA-00942"), "fatal", False),
        ("mysql", 1213, "retry", False),
        ("mysql", 1114, "retry", False),
        ("mysql", 1030, "retry", False),
        ("mysql", 3819, "fatal", True),
        ("mysql", 1146, "fatal", False),
        ("postgresql", {"C": "23514"}, "fatal", True),
        ("postgresql", {"C": "57P01"}, "retry", False),
    ],
)
def test_what_an_error_means(name: str, argument: object, kind: str, refuses: bool) -> None:
    """By the code that the driver gives; another error is fatal, and of no row."""
    error = DatabaseError(argument)
    assert DIALECTS[name].errors.kind(error) == kind
    assert DIALECTS[name].errors.refuses(error) is refuses


@pytest.mark.parametrize(
    ("options", "columns", "plain"),
    [
        ({"mssql_where": None, "mssql_include": []}, ["email"], True),
        ({"mssql_where": "[active]=(1)"}, ["email"], False),
        ({}, ["tenant", None], False),
        ({}, [None], False),
    ],
)
def test_an_index_of_some_rows_or_on_an_expression_is_not_plain(
    options: dict[str, object], columns: list[str | None], plain: bool
) -> None:
    """A filtered index of SQL Server, one on a function of Oracle; as SQLAlchemy describes them."""
    found = unique_index({"name": "i", "column_names": columns, "dialect_options": options})
    assert found.plain is plain
    assert found.columns == tuple(filter(None, columns))


def test_types_are_read_as_catalogues_write_them() -> None:
    """With numbers, signs, lengths and zones."""
    for backend, text, words, arrow in (
        ("mysql", "INTEGER(10) UNSIGNED", "integer(10) unsigned", "uint32"),
        ("mysql", 'VARCHAR(50) COLLATE "utf8mb4_bin"', "varchar(50)", "string"),
        ("oracle", "VARCHAR2(50 CHAR)", "varchar2(50)", "string"),
        ("oracle", "NUMBER(10, 2)", "number(10,2)", "decimal128(10, 2)"),
        (
            "oracle",
            "TIMESTAMP(6) WITH TIME ZONE",
            "timestamp(6) with time zone",
            "timestamp[us, tz=UTC]",
        ),
        ("mysql", "FLOAT(7, 4)", "float(7,4)", "None"),
        ("mysql", "DOUBLE", "double", "double"),
        ("mssql", "NVARCHAR(max)", "nvarchar(max)", "string"),
        ("mssql", "VARCHAR(20)", "varchar(20)", "None"),
        ("duckdb", "DECIMAL(5,2)[]", "decimal(5,2)[]", "list<item: decimal128(5, 2)>"),
        ("duckdb", "BIGINT[]", "bigint[]", "list<item: int64>"),
    ):
        assert words_of(text) == words
        assert str(arrow_type(backend, words)) == arrow
    assert parse("nvarchar(max)").first is None


@pytest.mark.parametrize(
    ("value", "fits"), [(999, True), (-999, True), (1000, False), (2**63 - 1, False)]
)
@pytest.mark.parametrize("nested", [False, True])
def test_an_integer_goes_into_a_decimal_of_few_digits(
    value: int, nested: bool, *, fits: bool
) -> None:
    """If it fits; Arrow alone would refuse all of its type."""
    integers, decimals = pa.array([value, None], pa.int64()), pa.decimal128(5, 2)
    values = pa.array([integers.to_pylist()], pa.list_(pa.int64())) if nested else integers
    target = pa.list_(decimals) if nested else decimals
    if not fits:
        with pytest.raises(pa.ArrowInvalid, match="does not fit"):
            cast_values(values, target)
        return
    found = cast_values(values, target)
    assert found.type == target
    assert (found.to_pylist()[0] if nested else found.to_pylist()) == [value, None]
