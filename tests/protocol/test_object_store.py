"""The protocol with checkpoint and log in an object store: faults, lost answers, and requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import wal_sink
from state_backends import open_backend
from tests.kills.every_fault import every_fault
from tests.protocol.engine import World, until_idle
from tests.protocol.publishing import query_in
from tests.support.s3 import S3
from wal_sink.errors import LogUnavailable, OptionError
from wal_sink.wal.location import find_by_checkpoint, locate

README = Path(__file__).parents[2] / "state_backends" / "README.md"


def world_in(s3: S3, bucket: str) -> World:
    """Return a new query whose checkpoint has the URL that Spark uses."""
    return World(
        open_backend(f"{bucket.replace('s3:', 's3a:')}/ck", s3.options),
        open_backend(f"{bucket}/log", s3.options),
    )


@pytest.mark.test_all
@pytest.mark.parametrize("role", ["run", "flusher"])
def test_run_and_flusher_over_bucket_recover_from_every_fault(
    s3: S3, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setattr("tests.kills.every_fault.EPOCHS", 2)
    assert len(every_fault(lambda: world_in(s3, s3.bucket()), role, "after")) > 20


def test_lost_answers_to_creates_change_nothing(s3: S3) -> None:
    """Given that the first answer to every conditional write is lost, each creator recognizes its object."""
    world = world_in(s3, s3.bucket("lossy-1"))
    run = world.run()
    for epoch in range(2):
        run.flushed_batches([("shared", epoch), (str(epoch), epoch)])
    assert world.table() == world.expected()
    assert world.state.opened == (world.state.run.run_id,)  # type: ignore[union-attr]
    assert world.log_backend.list("segments/") == world.log_backend.list("manifests/") == []


def test_status_finds_the_log_by_the_checkpoint(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the URL that Spark uses, and a log at its default place inside the checkpoint."""
    url = f"{s3.bucket().replace('s3:', 's3a:')}/ck"
    location = locate(url, wal_options=s3.options)
    world = World(open_backend(url, s3.options), location.open_log("query"))
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
    """Otherwise a caller would believe that they are used."""
    query_in(tmp_path).run().batch([("a", 1)])
    with pytest.raises(OptionError, match=r"storage_options: \['key'\] have no effect"):
        wal_sink.status(str(tmp_path), storage_options={"key": "k"})
    with pytest.raises(OptionError, match=r"\['key'\] have no effect"):
        wal_sink.status(str(tmp_path), wal=f"{tmp_path}/wal_sink", storage_options={"key": "k"})


def test_requests_of_an_epoch_are_documented(s3: S3) -> None:
    """The README of the stores lists the requests of one epoch with one segment."""
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
    counts = {"publish": publishing, "flush": flushing, "idle": idle}
    assert counts == documented_requests(README.read_text())


def documented_requests(text: str) -> dict[str, dict[str, int]]:
    """Return the numbers of the README's table of requests, by row and kind of request."""
    match = re.search(r"\| requests \|.*?\n\n", text, re.DOTALL)
    assert match, "the README has no table of requests"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in match[0].split("\n")]
    (_, *kinds), _, *rows = (row for row in cells if len(row) > 1)
    return {
        name: {kind: int(n) for kind, n in zip(kinds, numbers, strict=True) if n != "0"}
        for name, *numbers in rows
    }
