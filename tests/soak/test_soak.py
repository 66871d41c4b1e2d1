"""Short soaks, the checker of cells, and the readers."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyspark
import pytest

from tests.soak.cells import Cell, Expected, compare
from tests.soak.cluster import FAULTS, TARGETS, ClusterSoak
from tests.soak.features import FeaturesSoak
from tests.soak.readers import Reader, Rows, Store
from tests.support.deploy_table import Counted, Row


@pytest.mark.test_all
@pytest.mark.slow_first
@pytest.mark.spark
@pytest.mark.cassandra
@pytest.mark.timeout(1200)
def test_soak_with_three_kills_is_exact(tmp_path: Path) -> None:
    seed = secrets.randbelow(1_000_000)
    outcome = FeaturesSoak(tmp_path, seed).run_through(["worker", "growth", "cassandra", "driver"])
    assert outcome.exact, f"seed {seed}: {outcome.cells}, {outcome.wanted.wrong[:5]}, {outcome}"
    assert outcome.cells.expected > 0
    assert outcome.wanted.bad > 0
    assert outcome.wanted.late > 0, "refused by the flush"
    assert outcome.starts >= 1 + 1 + 1, "each death of a driver, and the last run"


@pytest.mark.test_all
@pytest.mark.slow_first
@pytest.mark.spark
@pytest.mark.cassandra
@pytest.mark.timeout(1800)
def test_soak_with_every_process_killed_is_exact(tmp_path: Path, counted: Counted) -> None:
    """Driver, executor, worker, master, Cassandra, Kafka and PostgreSQL are killed and paused."""
    seed = secrets.randbelow(1_000_000)
    with ClusterSoak(tmp_path, seed) as soak:
        outcome = soak.run_for(0)
    faults = {(fault.victim, fault.kind) for fault in outcome.faults}
    assert len(faults) >= len(FAULTS) - 1, "a process may end just before its turn"
    for name, (counts, *_) in outcome.targets.items():
        title = f"Kafka to {TARGETS[name]}, of three targets"
        killed = f"{len(faults)} processes killed, paused, overtaken"
        counted(Row(title, pyspark.__version__, killed, counts.expected, counts.found))
    assert outcome.exact, f"seed {seed}: {outcome._replace(samples=[])}"


class Pages(Store):
    """A store that returns these rows in turn."""

    def __init__(self, *pages: Rows) -> None:
        self._pages = iter(pages)

    def rows(self, bucket: int) -> Rows:
        return next(self._pages)


@pytest.mark.parametrize(
    ("later", "wrong"),
    [
        ([(1, "a"), (2, "b")], ""),
        ([(1, "a"), (1, "b")], "twice"),
        ([(2, "b")], "gone or changed"),
        ([(1, "c")], "gone or changed"),
    ],
)
def test_reader_reports_wrong_rows(later: Rows, wrong: str) -> None:
    """A row comes twice, disappears, or changes its key."""
    reader = Reader("store", Pages([(1, "a")], later))
    for _ in range(2):
        reader.read_bucket(0)
    assert bool(reader.wrong) == bool(wrong)
    assert wrong in "".join(reader.wrong)


KEY = (7,)
CELL = ("new", 2_000, (1_060, 1_060))


@pytest.mark.parametrize(
    ("column", "cell", "what"),
    [
        ("city", ("new", 2_000, (1_061, 1_061)), ""),
        ("city", ("new", 2_000, (1_057, 1_059)), ""),
        ("city", ("new", 2_000, (1_092, 1_092)), ""),
        ("city", None, "missing"),
        ("city", ("old", 2_000, (1_060, 1_060)), "values"),
        ("city", ("new", 1_999, (1_060, 1_060)), "times"),
        ("city", ("new", 2_000, (1_093, 1_093)), "ttls"),
        ("city", ("new", 2_000, (1_057, 1_058)), "ttls"),
        ("city", ("new", 2_000, None), "ttls"),
        ("note", ("ghost", 2_000, (1_060, 1_060)), "extra"),
        ("seq", ("deleted", 500, (1_060, 1_060)), "extra"),
        ("tag", ("over", 3_000, (900, 900)), "extra"),
    ],
)
def test_checker_compares_each_cell(
    column: str, cell: tuple[str, int, tuple[int, int] | None] | None, what: str
) -> None:
    """The checker compares value, write timestamp and expiry, and knows deleted and expired cells."""
    wanted = {
        "city": Cell(2_000, "new", 1_060),
        "seq": Cell(500, "deleted", 1_060),
        "tag": Cell(3_000, "over", 900),
    }
    expected = Expected(
        cells={KEY: wanted},
        deleted={KEY: 1_000},
        bad=0,
        late=0,
        wrong=[],
        mixed=[],
        epochs=1,
        changes=3,
    )
    present: dict[str, tuple[str, int, tuple[int, int] | None]] = {"city": CELL}
    if cell is None:
        del present[column]
    else:
        present[column] = cell
    cells = compare(expected, {KEY: present}, now_s=1_000)
    assert cells.exact is not bool(what), cells
    assert not what or getattr(cells, what) == 1, cells
