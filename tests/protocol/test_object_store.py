"""The protocol with checkpoint and log in an object store: crashes, lost answers, and what it costs."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Literal

import pytest

import wal_sink
from state_backends import open_backend
from tests.protocol.engine import World, until_idle
from tests.protocol.publishing import query_in
from tests.support.s3 import S3
from wal_sink.errors import LogUnavailable, OptionError
from wal_sink.testing.faults import Crash, Faults, different_faults
from wal_sink.wal.location import find_by_checkpoint, locate

README = Path(__file__).parents[2] / "state_backends" / "README.md"


def world_in(s3: S3, bucket: str) -> World:
    """Return a new query whose checkpoint is called as Spark calls it."""
    return World(
        open_backend(f"{bucket.replace('s3:', 's3a:')}/ck", s3.options),
        open_backend(f"{bucket}/log", s3.options),
    )


def script(world: World, epochs: int, run_faults: Faults, flush_faults: Faults) -> None:
    """Run up to `epochs` epochs, each an update and a row of its own, flushing after each."""
    run = world.run(run_faults)
    while run.next < epochs:
        key = f"{run.next}-{run.run_id[:8]}"
        run.batch([("shared", run.next)], [(key, run.next)])
        world.flush(flush_faults)


@pytest.mark.test_all
@pytest.mark.parametrize("seam", ["run", "flusher"])
def test_crash_at_every_operation_recovers(s3: S3, seam: Literal["run", "flusher"]) -> None:
    """As over folders, for one epoch: before the first operation, and after each that changes something."""
    whole = Faults()
    dies_and_recovers(s3, seam, whole)
    assert whole.injected is None
    deaths = different_faults(whole.operations, "before")
    for k in deaths:
        faults = Faults(at=k)
        dies_and_recovers(s3, seam, faults)
        assert faults.injected
    assert len(deaths) > 10, "the script is too short to mean something"


def dies_and_recovers(s3: S3, seam: Literal["run", "flusher"], faults: Faults) -> None:
    """Die in the first epoch; another run and another flusher put it right, and go on with a second."""
    world = world_in(s3, s3.bucket())
    run_faults, flush_faults = (faults, Faults()) if seam == "run" else (Faults(), faults)
    with contextlib.suppress(Crash):
        script(world, 1, run_faults, flush_faults)
    assert set(world.table()) <= {key for rows in world.committed.values() for key, _ in rows}
    script(world, 2, Faults(), Faults())
    assert world.flushed() == world.expected(), faults.injected
    assert world.log_backend.list("segments/") == world.log_backend.list("manifests/") == []
    assert (world.mark(), world.row.epoch) == (1, 1)


def test_lost_answers_to_creates_change_nothing(s3: S3) -> None:
    """The first answer to every conditional write is lost: no creator takes itself for another one."""
    world = world_in(s3, s3.bucket("lossy-1"))
    script(world, 2, Faults(), Faults())
    assert world.table() == world.expected()
    assert world.state.opened == (world.state.run.run_id,)  # type: ignore[union-attr]
    assert world.log_backend.list("segments/") == world.log_backend.list("manifests/") == []


def test_status_needs_the_checkpoints_url_alone(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark was given it, with the log at its default place inside."""
    url = f"{s3.bucket().replace('s3:', 's3a:')}/ck"
    location = locate(url, wal_options=s3.options)
    world = World(open_backend(url, s3.options), location.open_log("query").backend)
    world.query_id = "query"
    world.run().batch([("a", 1)])
    assert wal_sink.status(url, storage_options=s3.options).pending_epochs == 1
    world.flush()
    flushed = wal_sink.await_flushed(url, timeout=0, storage_options=s3.options)
    assert (flushed.epoch, flushed.rows) == (0, 0)
    status = wal_sink.status(url, storage_options=s3.options)
    assert (status.flushed, status.log) == (0, f"{location.checkpoint}/wal_sink/query")
    assert wal_sink.status(url, wal=location.logs, storage_options=s3.options).flushed == 0

    with pytest.raises(LogUnavailable, match="there is no bucket"):
        wal_sink.status(f"{url.replace('plain', 'missing')}", storage_options=s3.options)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    with pytest.raises(LogUnavailable, match="no credentials"):
        wal_sink.status(url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Geheim")
    assert wal_sink.status(url, storage_options={"profile": None}).flushed == 0


@pytest.mark.parametrize("checkpoint_in", ["s3", "folder"])
def test_log_in_a_bucket_is_found_by_its_checkpoint(
    s3: S3, tmp_path: Path, checkpoint_in: str
) -> None:
    """With the option that the query has."""
    bucket = s3.bucket()
    inside = f"{bucket.replace('s3:', 's3a:')}/ck" if checkpoint_in == "s3" else str(tmp_path)
    world = World(
        open_backend(inside, s3.options if checkpoint_in == "s3" else None),
        open_backend(f"{bucket}/logs/query", s3.options),
    )
    world.query_id = "query"
    world.run().batch([("a", 1)])
    for wal in (None, f"{bucket}/logs"):
        query_id, location = find_by_checkpoint(inside, wal, "--wal", s3.options)
        assert query_id == "query"
        assert location.open_log(query_id).url == f"{bucket}/logs/query"


def test_storage_options_for_folders_are_refused(tmp_path: Path) -> None:
    """Silence would make believe that they are used."""
    query_in(tmp_path).run().batch([("a", 1)])
    with pytest.raises(OptionError, match=r"storage_options: \['key'\] have no effect"):
        wal_sink.status(str(tmp_path), storage_options={"key": "k"})
    with pytest.raises(OptionError, match=r"\['key'\] have no effect"):
        wal_sink.status(str(tmp_path), wal=f"{tmp_path}/wal_sink", storage_options={"key": "k"})


def test_requests_of_an_epoch_are_documented(s3: S3) -> None:
    """The requests of one epoch with one segment, published and flushed, are those of the README."""
    world = world_in(s3, s3.bucket())
    run = world.run()
    flusher = world.flusher()
    for _ in range(2):  # the first one also makes the log and the ledger row
        run.batch([("a", 1)])
        until_idle(flusher)
    run.write_offsets()
    s3.counts()
    run.commit(run.tasks([("a", 2)]))
    publishing = s3.counts()
    run.write_commit([[("a", 2)]])
    s3.counts()
    flusher.run_once()
    flushing = s3.counts()
    flusher.run_once()
    idle = s3.counts()
    kinds = ("PUT", "LIST", "GET", "HEAD", "DELETE")
    counts = {"publish": publishing, "flush": flushing, "idle": idle}
    documented = {row[0].strip(): list(map(int, row[1:])) for row in rows_of(README.read_text())}
    assert documented == {
        name: [count.get(kind, 0) for kind in kinds] for name, count in counts.items()
    }


def rows_of(text: str) -> list[list[str]]:
    """Return the rows of the table of requests."""
    match = re.search(r"\| requests \|.*?\n\n", text, re.DOTALL)
    assert match, "the README has no table of requests"
    return [line.strip("| ").split("|") for line in match[0].splitlines()[2:] if line]
