"""`flush` as a process over a real Cassandra, alone and beside others; and what else asks the ledger."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cli.job import EVERYTHING, Job
from tests.cli.shell import FOLLOWS, run, start
from tests.protocol.damaged import segments
from tests.protocol.operators import edit
from tests.support.waiting import until
from wal_sink import errors
from wal_sink.flush.report import Reporter
from wal_sink.model import paths
from wal_sink.model.records import FlusherReport
from wal_sink.testing.faults import Faults
from wal_sink.testing.servers import process

pytestmark = pytest.mark.cassandra


def test_once(job: Job) -> None:
    """What waits is in the table, and it says how much; there is nothing to do the second time."""
    done = job.command("flush", "--json")
    assert done.code == 0, done.err
    shown = done.document
    assert (shown["epochs"], shown["rows"]) == (3, 6)
    assert (shown["flushed"], shown["pending_epochs"]) == (4, 0)
    assert shown["bytes"] > 0
    assert job.table() == EVERYTHING
    assert segments(job.world) == []
    refused = job.command("flush", "--metrics-port", 0)
    assert refused.code == 2
    assert "goes with --follow" in refused.err
    again = job.command("flush")
    assert again.code == 0
    assert "0 epochs were flushed" in again.out
    assert "everything checkpointed is flushed" in again.out
    shown = job.command("status", "--json").document
    assert (shown["flusher_alive"], shown["last_error"], shown["safe_to_delete"]) == (
        False,
        None,
        True,
    )


def test_an_error_ends_it(job: Job) -> None:
    """With its exit code; `status` knows it as well. A target that is down is tried some times."""
    elsewhere = ("--option", "cassandra.port=1", "--option", "cassandra.requestTimeout=1")
    secret = ("--option", "cassandra.username=me", "--option", "cassandra.password=s3cret")
    asked = job.command("flush", "--json", *elsewhere, *secret)
    confirm = f"--option cassandra.contactPoints={job.node.host}."
    assert (asked.code, confirm in asked.document["remedy"]) == (2, True)
    host = ("--option", f"cassandra.contactPoints={job.node.host}")
    down = job.command("flush", "--json", *elsewhere, *secret, *host)
    assert (down.code, down.document["error"]) == (4, "TargetUnavailable")
    known = job.command("status", "--json")
    assert "TargetUnavailable" in known.document["last_error"]
    assert "s3cret" not in down.out + down.err + known.out
    path = segments(job.world)[0]
    edit(job.world.log_backend, path, job.world.log_backend.read(path)[:-1])
    corrupt = job.command("flush", "--json")
    assert (corrupt.code, corrupt.document["error"]) == (6, "CorruptLog")
    assert job.table().keys() == {"a0", "b0", "a1", "b1"}


def test_following(job: Job) -> None:
    """It goes on with what comes, until SIGTERM; Prometheus can ask it."""
    world = job.world
    port = process.choose("127.0.0.1")
    metrics = ("--metrics-port", port)
    with start(job.folder, "flush", "checkpoint", "--follow", "--json", *metrics) as following:
        try:
            until(lambda: job.table() == EVERYTHING)
            shown = job.command("status", "--json").document
            assert (shown["flusher_alive"], shown["flusher"].rpartition(":")[2]) == (
                True,
                str(following.pid),
            )
            world.run().batch([("late", 5)])
            until(lambda: job.table() == EVERYTHING | {"late": 5})
            until(lambda: world.log.flushed(5) is not None)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                shown = page.read().decode()
            labels = f'{{query_id="{world.query_id}",target=""}}'
            assert f"wal_sink_flushed_rows_total{labels} 7.0" in shown
            assert f"wal_sink_flushers{labels} 1.0" in shown
            assert f'table="{job.keyspace}.t"' in shown
            taken = job.command("flush", "--follow", "--json", *metrics)
            assert (taken.code, taken.document["error"]) == (2, "OptionError")
            assert f"port {port}: Address already in use" in taken.document["what"]
        finally:
            following.send_signal(signal.SIGTERM)
        out, err = following.communicate(timeout=60)
    said = f"Metrics are on port {port}, at /metrics; it listens on 127.0.0.1\n"
    assert (following.returncode, err) == (0, said + FOLLOWS)
    shown = json.loads(out)
    assert (shown["epochs"], shown["rows"], shown["flushed"]) == (4, 7, 5)
    assert shown["why"] == "stopped"


def test_a_metrics_host_without_a_port_is_refused(tmp_path: Path) -> None:
    """It would be given in vain."""
    done = run(tmp_path, "flush", "checkpoint", "--follow", "--metrics-host", "0.0.0.0", "--json")
    assert (done.code, done.document["what"]) == (2, "--metrics-host goes with --metrics-port.")


def test_following_as_people_see_it(job: Job) -> None:
    """An error is no end: it is logged and tried again. Ctrl-C is."""
    elsewhere = ("--option", "cassandra.port=1", "--option", "cassandra.requestTimeout=1")
    with start(job.folder, "flush", "checkpoint", "--follow", *elsewhere) as following:
        try:
            until(
                lambda: (
                    "Unavailable"
                    in (job.command("status", "--json").document["last_error"] or "nothing")
                )
            )
            assert following.poll() is None
        finally:
            following.send_signal(signal.SIGINT)
        out, err = following.communicate(timeout=60)
    assert (following.returncode, err) == (0, "")
    assert out.startswith(FOLLOWS)
    assert "0 epochs were flushed" in out


def test_beside_a_flusher_that_lives(job: Job) -> None:
    """It flushes, and leaves the word to the other: who ends must not look like a query that ended."""
    Reporter(job.world.log, lambda: time.time_ns() // 1_000).say("resting", None)
    before = job.world.log_backend.read(paths.FLUSHER)
    assert job.command("flush", "--json").document["epochs"] == 3
    assert job.table() == EVERYTHING
    assert job.world.log_backend.read(paths.FLUSHER) == before
    silent = FlusherReport(flusher="there:1", doing="resting", heartbeat_us=1, beat=1)
    job.world.log.report(silent)
    job.command("flush")
    assert job.world.log.last_report() != silent


def test_what_is_begun_only_the_ledger_knows(job: Job) -> None:
    """`inspect --ledger` tells it; without, the target may be down."""
    with pytest.raises(errors.TargetUnavailable):
        job.world.flush(Faults(at=0, error=ConnectionError, matching="write"))
    found = job.command("inspect", "--json").document
    assert [line["state"] for line in found["epochs"]] == ["flushed"] * 2 + ["waiting"] * 3
    found = job.command("inspect", "--ledger", "--json").document
    assert [line["state"] for line in found["epochs"]] == ["flushed"] * 2 + ["begun"] * 3
    one = job.command("inspect", 3, "--ledger", "--json").document
    assert (one["begun"]["epoch"], one["attempts"][0]["state"]) == (3, "begun")
    assert "timestamps from" in job.command("inspect", 3, "--ledger").out


def test_what_is_left_goes_once_the_ledger_agrees(job: Job) -> None:
    """A flush that is interrupted leaves it; `--dry-run` says so, and asks no target."""
    disk = Faults(at=0, error=lambda: OSError("read-only"), matching="delete segments")
    job.world.flush(disk)
    assert disk.injected is not None
    left = job.world.log_backend.list(paths.SEGMENT.folder)
    assert left
    down = ("--option", "cassandra.port=1", "--option", "cassandra.requestTimeout=1")
    said = job.command("flush", "--dry-run", *down)
    assert (said.code, said.err) == (0, "")
    assert "Every epoch up to 4 is in the target" in said.out
    assert job.command("flush", *down).code == 4
    assert job.world.log_backend.list(paths.SEGMENT.folder) == left
    done = job.command("flush")
    assert done.code == 0, done.err
    assert "were deleted" in done.out
    assert job.world.log_backend.list(paths.SEGMENT.folder) == []
    assert job.command("flush", "--json").document["trimmed"] == []
