"""`flush`: alone, beside other flushers, with `--follow`, and its trim."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request

import msgspec
import pytest

from tests.cli.job import KIND, Job, batches, rows_of
from tests.cli.shell import FOLLOWS, run, start
from tests.support.waiting import until
from wal_sink.demo.server import choose_port
from wal_sink.flush.reporter import Reporter
from wal_sink.model import paths
from wal_sink.model.plan import Plan
from wal_sink.progress.flusher_report import FlusherReport, read_report
from wal_sink.protocol.retention import Retention
from wal_sink.wal.store import read_record

EVERYTHING = rows_of(0, 1, 2, 3, 4)


def at_once(job: Job) -> None:
    """Set the retention of the next run to zero."""
    job.retention = Retention(us=0, bytes=0)
    batches(job, 5)


def test_pending_epochs_are_flushed_once(job: Job) -> None:
    preview = job.command("flush", "--dry-run").document
    assert [preview[name] for name in ("flushed", "trimmed", "epochs", "rows")] == [1, -1, 3, 6]
    text = run(job.folder, "flush", "checkpoint", "--dry-run")
    assert "3 epochs would be flushed" in text.out
    done = job.command("flush").document
    assert (done["epochs"], done["rows"], done["flushed"], done["pending_epochs"]) == (3, 6, 4, 0)
    assert done["bytes"] > 0
    assert job.rows() == EVERYTHING
    again = job.command("flush").document
    assert (again["epochs"], again["reason"]) == (0, "everything checkpointed is flushed")
    shown = job.command("status").document
    assert (shown["flusher_alive"], shown["last_error"], shown["safe_to_delete"]) == (
        False,
        None,
        True,
    )


def test_flush_ends_with_the_exit_code_of_its_error(job: Job) -> None:
    """The command tries a transient error again, before it ends."""
    path = job.log_backend.list(paths.segment_folder(2))[0]
    job.log_backend.replace(path, job.log_backend.read(path)[:-1])
    assert job.refused("flush") == (6, "CorruptLog")
    assert "CorruptLog" in job.command("status").document["last_error"]
    assert job.rows() == rows_of(0, 1)
    job.database.rename(job.folder / "away.db")
    job.database.mkdir()
    assert job.refused("flush") == (4, "TargetUnavailable")


def test_flushed_epochs_are_deleted_after_their_retention(job: Job) -> None:
    """`--dry-run` has the same numbers, changes nothing, and does not connect."""
    assert job.command("flush").document["trimmed"] == -1
    assert job.log_backend.list(paths.SEGMENT.folder)
    now = ("--option", "wal.retention=0")
    earlier = job.log_backend.list()
    job.database.rename(job.folder / "away.db")
    shown = job.command("flush", "--dry-run", *now).document
    assert (shown["dry_run"], shown["trimmed"], shown["epochs"]) == (True, 4, 0)
    assert job.log_backend.list() == earlier
    assert job.command("flush", "--dry-run").document["trimmed"] == -1
    (job.folder / "away.db").rename(job.database)
    assert job.command("flush", *now).document["trimmed"] == 4
    assert job.log_backend.list(paths.SEGMENT.folder) == []
    assert job.command("flush", *now).document["trimmed"] == 4
    batches(job, 5)
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 2, 3, 4, 5)


def test_flush_command_obeys_max_rows_per_second(job: Job) -> None:
    began_s = time.monotonic()
    assert job.command("flush", "--option", "flush.maxRowsPerSecond=4").code == 0
    assert time.monotonic() - began_s > 0.4
    assert job.rows() == EVERYTHING


def following(job: Job, *more: object) -> subprocess.Popen[str]:
    """Start `flush --follow`."""
    return start(job.folder, "flush", "checkpoint", "--follow", "--option", f"target={KIND}", *more)


@pytest.mark.usefixtures("_on_path")
def test_follow_flushes_later_epochs_until_sigterm(job: Job) -> None:
    port = choose_port("127.0.0.1")
    metrics = ("--metrics-port", port)
    with following(job, "--json", *metrics) as follower:
        try:
            until(lambda: job.rows() == EVERYTHING)
            until(lambda: job.mark() == 4)
            shown = job.command("status").document
            flusher = (shown["flusher_alive"], shown["flusher"].rpartition(":")[2])
            assert flusher == (True, str(follower.pid))
            batches(job, 5)
            until(lambda: job.mark() == 5)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                text = page.read().decode()
            assert f'wal_sink_flushed_rows_total{{query_id="{job.query_id}"' in text
            assert job.refused("flush", "--follow", *metrics) == (2, "OptionError")
            assert job.refused("set-mark", "--to", 4, "--yes") == (5, "FlusherAtWork")
        finally:
            follower.send_signal(signal.SIGTERM)
        out, err = follower.communicate(timeout=60)
    message = f"Metrics are on port {port}, at /metrics; it listens on 127.0.0.1\n"
    assert (follower.returncode, err[: len(message + FOLLOWS)]) == (0, message + FOLLOWS)
    assert err.splitlines()[2:] == [
        f"Query {job.query_id}: flushing {job.checkpoint.url} to {job.target.name}"
    ]
    shown = json.loads(out)
    assert (shown["epochs"], shown["rows"], shown["flushed"]) == (4, 8, 5)
    assert shown["reason"] == "stopped"


@pytest.mark.usefixtures("_on_path")
def test_follow_flushes_after_an_outage_until_ctrl_c(job: Job) -> None:
    """The database is down at first. Ctrl-C ends the command."""
    database, link = job.folder / "renamed.db", job.folder / "link"
    job.database.rename(database)
    job.database.symlink_to(job.folder)
    with following(job) as follower:
        try:
            until(lambda: "Unavailable" in (job.command("status").document["last_error"] or ""))
            assert follower.poll() is None
            link.symlink_to(database)
            link.replace(job.database)  # in one step: SQLite would make a file that is missing
            until(lambda: job.mark() == 4)
        finally:
            follower.send_signal(signal.SIGINT)
        out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert out.startswith(FOLLOWS)
    assert "3 epochs were flushed" in " ".join(out.split())
    assert job.rows() == EVERYTHING


def test_flush_keeps_the_report_of_another_flusher(job: Job) -> None:
    """The report of a flusher that ends must not replace that of a flusher that is alive."""
    Reporter(job.log_backend, "sqlite", lambda: time.time_ns() // 1_000).report("resting", None)
    path = paths.REPORT.path("sqlite")
    other = FlusherReport(flusher="there:1", doing="resting", heartbeat_us=time.time_ns() // 1_000)
    job.log_backend.replace(path, other.to_json())
    assert job.command("flush").document["epochs"] == 3
    assert job.rows() == EVERYTHING
    assert read_report(job.log_backend, "sqlite") == other


def test_rows_go_only_to_a_confirmed_table(job: Job) -> None:
    """The plan in the log names another table.

    Its rows are written only after the operator confirms the table.
    """
    job.execute("CREATE TABLE other (k TEXT, v INTEGER)")
    (path,) = job.log_backend.list(paths.PLAN.folder)
    plan = read_record(job.log_backend, Plan, path)
    assert plan is not None
    forged = msgspec.structs.replace(plan, table='"other"').for_log(plan.key)
    job.log_backend.replace(path, forged.to_json())
    refused = job.command("flush")
    assert (refused.code, refused.document["error"]) == (2, "OptionError")
    assert "--option table=other" in refused.document["remedy"]
    assert job.rows("other") == []
    assert job.command("flush", "--option", "table=other").code == 0
    assert job.rows("other") == rows_of(2, 3, 4)
