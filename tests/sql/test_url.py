"""Option sql.url: databases that it may name, its password, and its driver."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.sql.stores import (
    SCHEMA,
    Sqlite,
    agreed,
)
from wal_sink.errors import OptionError
from wal_sink.options import parse, public
from wal_sink.targets.sqlalchemy import SqlAlchemyOptions, SqlAlchemyTarget


def test_error_of_a_refused_connection_names_the_options(tmp_path: Path) -> None:
    """The file is not a database. The driver refuses it as a server refuses a password."""
    (tmp_path / "a.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(OptionError, match=r"sql at sqlite:.*a\.db refuses: ") as caught:
        agreed(Sqlite(tmp_path).target())
    assert "Correct sql.url or sql.password (or WAL_SINK_SQL_PASSWORD)" in caught.value.remedy


@pytest.mark.parametrize("backend", ["sqlite", "duckdb"])
def test_file_in_a_missing_folder_is_refused(tmp_path: Path, backend: str) -> None:
    url = f"{backend}:///{tmp_path}/none/a.db"
    with pytest.raises(OptionError, match=r"folder .*/none does not exist on this host"):
        agreed(SqlAlchemyTarget(SqlAlchemyOptions(url=url, table="t")))


def test_password_is_kept_apart_from_the_url() -> None:
    """Neither public options nor texts have the password."""
    parameters = {"sql.url": "mysql+pymysql://me:s%40cret@db:3306/shop", "table": "t"}
    options = parse(parameters, SqlAlchemyOptions)
    assert (options.url, options.password) == ("mysql+pymysql://me@db:3306/shop", "s@cret")
    assert "s@cret" not in str(public(options)) + repr(options)
    target = SqlAlchemyTarget(options)
    assert pickle.loads(pickle.dumps(target)).options == options


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("shop.db", "not a URL of a database"),
        ("postgresql+psycopg://me@there/db", "has a target of its own"),
        ("sqlite://", "no file by an absolute path"),
        ("duckdb:///:memory:shop", "no file by an absolute path"),
        ("sqlite:///file:shop?mode=memory&cache=shared&uri=true", "no file by an absolute path"),
        ("sqlite:///shop.db", "no file by an absolute path"),
        ("mssql+pyodbc://db/shop?odbc_connect=x", "parameter odbc_connect"),
        ("mysql://me@db/shop?password=x", "parameter password"),
    ],
)
def test_url_that_cannot_be_used_is_refused(url: str, words: str) -> None:
    """The error comes when the options are parsed."""
    with pytest.raises(OptionError, match=words):
        SqlAlchemyOptions(url=url, table="t")


def test_schema_of_sqlite_other_than_main_is_refused() -> None:
    url = "sqlite:////shop.db"
    SqlAlchemyOptions(url=url, table="main.t")
    for table, ledger in (("other.t", "l"), ("t", "other.t")):
        with pytest.raises(OptionError, match=r"other\.t has the schema other"):
            SqlAlchemyOptions(url=url, table=table, ledger_table=ledger)


@pytest.mark.parametrize(
    ("url", "driver", "package", "scheme"),
    [
        ("mssql+pymssql://me@db/shop", "pymssql", "pymssql", "every flusher run:"),
        ("mysql://me@db/shop", "MySQLdb", "pymysql", "mysql+pymysql://"),
    ],
)
def test_error_names_a_missing_driver(url: str, driver: str, package: str, scheme: str) -> None:
    """The error names a package that exists, and the beginning of its URL."""
    options = SqlAlchemyOptions(url=url, table="t")
    with pytest.raises(OptionError, match=f"driver {driver} is not installed") as caught:
        SqlAlchemyTarget(options).plan(SCHEMA, "key")
    assert f"pip install '{package}'" in caught.value.remedy
    assert scheme in caught.value.remedy


def test_upsert_into_an_unknown_database_is_refused() -> None:
    """Databases without a dialect have no common statement that replaces a row."""
    url = "mssql+pyodbc://me@db/shop"
    SqlAlchemyOptions(url=url, table="t")
    with pytest.raises(OptionError, match="knows no statement that replaces a row in mssql"):
        SqlAlchemyOptions(url=url, table="t", mode="upsert")
