"""The model of docs/scale.md agrees with measurements and with its page."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.benchmarks import scale
from tests.protocol.engine import World, in_memory
from wal_sink.model import paths

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_scale_table_of_the_docs_equals_the_model() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    start = page.index(scale.table()[0])
    assert page[start : start + len(scale.table())] == scale.table()


@pytest.mark.parametrize(
    ("rows", "tasks", "seconds"),
    [(0, 2_000, 60.0), (1_000_000, 2, 1.76), (40, 2, 0.225)],
    ids=["2,000 tasks", "a million rows", "nearly no rows"],
)
def test_scale_model_agrees_with_measured_epochs(rows: int, tasks: int, seconds: float) -> None:
    """The measured epochs ran on two cores with other work."""
    assert scale.epoch(rows, tasks, 2, "folder").micro_batch_s == pytest.approx(seconds, rel=0.25)


def test_publishing_cost_is_linear_in_segments() -> None:
    """CPU time and bytes of many segments are proportional to their number."""
    world = World(*in_memory())
    run = world.run()
    run.write_offsets()
    (one,) = run.tasks([("a", 1)])
    (segment,) = one.segments
    numbers = range(5_000)
    names = (paths.SegmentName(0, n, 0, "run", "0" * 32) for n in numbers)
    many = [
        msgspec.structs.replace(
            one, segments=(msgspec.structs.replace(segment, path=paths.SEGMENT.path(name)),)
        )
        for name in names
    ]
    world.log_backend.size = lambda path: segment.bytes  # type: ignore[method-assign]
    started = time.process_time()
    manifest = run.commit(many)
    spent = time.process_time() - started
    assert manifest is not None
    size = len(world.log_backend.read(world.state.last.manifest))
    assert size / len(many) == pytest.approx(scale.MANIFEST_BYTES, rel=0.2)
    assert spent / len(many) < 10 * scale.PUBLISH_S
