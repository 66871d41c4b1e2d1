"""A database for one test: by default one of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sql.mariadb import MariaDb
from tests.sql.stores import STORES, Maria, Store, new_store


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Make a database; `@pytest.mark.parametrize("store", [Sqlite], indirect=True)` chooses kinds."""
    made: Store = new_store(request.param, request, tmp_path)
    return made


@pytest.fixture
def maria(mariadb: MariaDb, database: str) -> Maria:
    return Maria(mariadb, database)
