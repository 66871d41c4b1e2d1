"""The contract over a REST catalog, whose server checks each condition and applies the changes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.iceberg.conftest import load, make_table, query, read
from tests.iceberg.rest_server import RestCatalog
from tests.iceberg.test_target_contract import IcebergContract
from wal_sink.model.ledger import Outcome
from wal_sink.options import parse
from wal_sink.targets.iceberg import IcebergTarget
from wal_sink.targets.iceberg.options import IcebergOptions
from wal_sink.testing.contracts.ledger import following
from wal_sink.testing.contracts.rows import WITH_DOUBLE

pytestmark = pytest.mark.long

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    made = RestCatalog(tmp_path_factory.mktemp("rest"))
    yield made
    made.close()


@pytest.fixture
def options(server: RestCatalog) -> dict[str, str]:
    return server.new_table()


@pytest.mark.test_all
class TestRest(IcebergContract):
    """The whole suite, as `TestIceberg` over a SQL catalog."""

    @pytest.fixture
    def target(self, options: dict[str, str]) -> IcebergTarget:
        make_table(options, WITH_DOUBLE)
        return IcebergTarget(parse(options, IcebergOptions))


def test_racing_finishes_from_one_ledger_row_have_one_winner(options: dict[str, str]) -> None:
    """The server itself repeats a change after a conflict, with the conditions."""
    make_table(options, SCHEMA)
    with query(options, SCHEMA) as running:
        for _ in range(3):
            row = running.row
            rows = [following(row) for _ in range(6)]
            sessions = [running.connect() for _ in rows]
            with ThreadPoolExecutor(len(rows)) as pool:
                outcomes = [*pool.map(lambda s, n: s.finish(row, n), sessions, rows)]  # noqa: B023
            assert outcomes.count(Outcome.APPLIED) == 1
            assert running.row == rows[outcomes.index(Outcome.APPLIED)]
            staged = running.stage([{"k": "a", "v": row.epoch}])
            assert running.commit(staged) is Outcome.APPLIED
        assert sorted(record["v"] for record in read(options)) == [-1, 1, 3]
        assert len(load(options).metadata.snapshots) == 4
