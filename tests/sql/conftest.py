"""A database for one test: by default of each kind that target `sql` knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sql.stores import DuckDb, Maria, Sqlite, Store


@pytest.fixture(params=[Sqlite, DuckDb, pytest.param(Maria, marks=pytest.mark.mariadb)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Make a database; `@pytest.mark.parametrize("store", [Sqlite], indirect=True)` chooses kinds."""
    if request.param is Maria:
        return Maria(request.getfixturevalue("mariadb"), request.getfixturevalue("database"))
    made: Store = request.param(tmp_path)
    return made
