"""`reset`: a stopped query begins anew, and no row that only the log has is lost unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.cli.shell import run
from tests.protocol.engine import World
from wal_sink import errors
from wal_sink.admin.query import find_query
from wal_sink.admin.reset import ResetPlan, plan_reset
from wal_sink.clock import now_us
from wal_sink.progress.status import read_status
from wal_sink.testing.faults import Crash, Faults, FaultyBackend
from wal_sink.wal.log import Log


@pytest.fixture
def flushed(world: World) -> World:
    """Two epochs, both in the target; no flusher is left."""
    batches = world.run()
    batches.batch([("a", 0)])
    batches.batch([("b", 1)])
    world.flush()
    return world


def files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_a_flushed_query_is_deleted_whole(flushed: World, tmp_path: Path) -> None:
    """After a yes; with its log, and rows in the target stay."""
    refused = run(tmp_path, "reset", "checkpoint", answer="n\n")
    assert refused.code == errors.OptionError.exit_code
    assert "reads its source from the beginning" in refused.err
    assert files(tmp_path / "checkpoint")
    done = run(tmp_path, "reset", "checkpoint", "--yes", "--json")
    assert done.code == 0, done.err
    assert done.document["query_id"] == flushed.query_id
    assert done.document["discarded_epochs"] == 0
    assert not (tmp_path / "checkpoint").exists()
    assert set(flushed.table()) == {"a", "b"}


def test_what_only_the_log_has_is_kept(flushed: World, tmp_path: Path) -> None:
    """Until the operator gives it up by a flag of its own: --yes is not enough."""
    flushed.run().batch([("c", 2)])
    before = files(tmp_path / "checkpoint")
    refused = run(tmp_path, "reset", "checkpoint", "--yes", "--json")
    assert refused.code == errors.NotDrained.exit_code
    assert "wal-sink flush CHECKPOINT" in refused.document["remedy"]
    assert files(tmp_path / "checkpoint") == before
    done = run(tmp_path, "reset", "checkpoint", "--yes", "--json", "--discard-unflushed")
    assert (done.code, done.document["discarded_rows"]) == (0, 1), done.err
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("operation", ["list", "delete"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_that_died_is_run_again(
    flushed: World, tmp_path: Path, operation: str, when: Literal["before", "after"]
) -> None:
    """Wherever it died, before the log or in it: Spark's files are gone by then, but for the query id."""
    place = str(tmp_path / "checkpoint")
    query = find_query(place)
    found = read_status(query.checkpoint, query.log)
    died = Faults(at=0, when=when, matching=operation)
    query = query._replace(log=Log(FaultyBackend(query.log.backend, died)))
    with pytest.raises(Crash):
        ResetPlan(query, found).carry_out(now_us())
    again = find_query(place)
    assert read_status(again.checkpoint, again.log).checkpointed == -1
    plan_reset(again, now_us()).carry_out(now_us())
    assert not (tmp_path / "checkpoint").exists()
