"""`status` of queries in every condition."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.shell import run, start
from tests.protocol.engine import World
from wal_sink.errors import TargetUnavailable, stand_in
from wal_sink.flush.reporter import Reporter
from wal_sink.model import paths
from wal_sink.progress.flusher_report import ENDED, read_report


def reporter(world: World) -> Reporter:
    """Return a reporter of a flusher in this process."""
    return Reporter(world.log_backend, "memory", lambda: time.time_ns() // 1_000)


def printed(folder: Path) -> str:
    """Return the text of `status`, with folded lines joined."""
    done = run(folder, "status", "checkpoint")
    assert (done.code, done.err) == (0, "")
    return " ".join(done.out.split())


def reported(folder: Path) -> dict[str, Any]:
    """Return the document of `status --json`."""
    return run(folder, "status", "checkpoint", "--json").document


def test_query_that_only_started_has_nothing_pending(world: World, tmp_path: Path) -> None:
    world.run()
    shown = reported(tmp_path)
    assert shown["query_id"] == world.query_id
    assert [shown[name] for name in ("checkpointed", "published", "flushed")] == [-1, -1, -1]
    assert (shown["flushed_as_of"], shown["last_error"], shown["flusher"]) == (None, None, None)
    assert (shown["pending_epochs"], shown["safe_to_delete"]) == (0, True)
    text = printed(tmp_path)
    assert "none has ever reported" in text
    assert "yes, checkpoint and log, once the query is stopped" in text
    assert "reads its source from the beginning" in text


class Bounded(World):
    """A query whose log has a budget."""

    @property
    def options(self) -> dict[str, str]:
        """The options in the state of the log."""
        return {"wal.maxBytes": "5000000"}


def test_query_that_lags_shows_lag_budget_and_flusher(world: World, tmp_path: Path) -> None:
    world.__class__ = Bounded
    batches = world.run().flushed_batches([("a", 1)])
    batches.batch([("b", 2), ("c", 3)], [("d", 4)])
    batches.batch([("e", 5)])
    batches.publish([("f", 6)])
    reporter(world).report("writing", 1)
    shown = reported(tmp_path)
    assert [shown[name] for name in ("checkpointed", "published", "flushed")] == [2, 3, 0]
    assert (shown["pending_epochs"], shown["pending_rows"]) == (2, 4)
    assert 0 < shown["pending_bytes"] < shown["budget_bytes"] == 5_000_000
    assert shown["oldest_pending_seconds"] > 0
    assert shown["flushed_as_of"].endswith("+00:00")
    assert (shown["doing"], shown["flusher_alive"]) == ("writing epoch 1", True)
    assert 0 <= shown["heartbeat_seconds"] < 60
    assert shown["safe_to_delete"] is False
    text = printed(tmp_path)
    for part in (
        "2 epochs, 4 rows",
        " of 5.0 MB (wal.maxBytes), oldest ",
        "alive: writing epoch 1",
    ):
        assert part in text
    assert text.count("oldest") == 1
    assert "no: 2 checkpointed epochs are not flushed" in text


def test_flusher_is_shown_as_failing_dead_or_ended(world: World, tmp_path: Path) -> None:
    world.run().batch([("a", 1)])
    reporter(world).failed(TargetUnavailable("Node [10.0.0.7] is down", "Repair it."))
    shown = reported(tmp_path)
    assert shown["last_error"] == "TargetUnavailable: Node [10.0.0.7] is down"
    assert (shown["remedy"], shown["flusher_alive"]) == ("Repair it.", True)
    text = printed(tmp_path)
    assert "Node [10.0.0.7] is down" in text
    assert "Repair it." in text
    assert "Nothing flushes" not in text

    report = read_report(world.log_backend, "memory")
    assert report is not None
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    host = report.flusher.rpartition(":")[0]
    path = paths.REPORT.path("memory")
    dead = msgspec.structs.replace(report, flusher=f"{host}:{gone.pid}")
    world.log_backend.replace(path, dead.to_json())
    assert reported(tmp_path)["flusher_alive"] is False
    assert "is silent or gone" in printed(tmp_path)
    ended = msgspec.structs.replace(report, doing=ENDED, error=None)
    world.log_backend.replace(path, ended.to_json())
    assert "has ended, " in printed(tmp_path)
    assert "Nothing flushes: start the query again, or run `wal-sink flush file:" in printed(
        tmp_path
    )


def test_checkpoint_that_was_set_back_is_reported(world: World, tmp_path: Path) -> None:
    world.run().flushed_batches([("a", 1)], [("b", 2)])
    world.checkpoint.delete(["commits/1"])
    shown = reported(tmp_path)
    assert (shown["checkpointed"], shown["flushed"], shown["pending_epochs"]) == (0, 1, 0)
    assert "the checkpoint is older than the flushed epochs" in printed(tmp_path)


def test_status_of_lost_checkpoint_prints_recovery_commands(world: World, tmp_path: Path) -> None:
    world.run().flushed_batches([("a", 0)]).batch([("c", 2)])
    for name in ("metadata", "offsets", "commits"):
        remaining = tmp_path / "checkpoint" / name
        remaining.unlink() if remaining.is_file() else shutil.rmtree(remaining)
    refused = reported(tmp_path)
    assert stand_in(world.log_backend.url, "LAST") in refused["remedy"]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["nowhere"], 6, "CheckpointNotVisible"),
        (["checkpoint"], 2, "OptionError"),
        (["checkpoint", "--option", "s3cret"], 2, "OptionError"),
    ],
)
def test_status_without_log_or_with_malformed_option_is_refused(
    world: World, tmp_path: Path, arguments: list[str], code: int, error: str
) -> None:
    world.checkpoint.create("metadata", json.dumps({"id": world.query_id}).encode())
    done = run(tmp_path, "status", *arguments, "--json")
    assert (done.code, done.document["error"]) == (code, error)
    assert "s3cret" not in done.err + done.out
    assert ("no such folder" in done.document["what"]) == (arguments == ["nowhere"])


def test_query_that_never_published_cannot_be_flushed(world: World, tmp_path: Path) -> None:
    world.run()
    deep = run(tmp_path, "status", "checkpoint", "--deep")
    assert (deep.code, deep.err) == (0, "")
    assert "none: nothing would stop the flush" in deep.out
    flushed = run(tmp_path, "flush", "checkpoint")
    assert flushed.code == 2
    assert "has published nothing yet" in flushed.err
    assert "keyspace" not in flushed.err


def test_watch_as_json_prints_documents_until_ctrl_c(world: World, tmp_path: Path) -> None:
    batches = world.run().batches([("a", 1)])
    with start(tmp_path, "status", "checkpoint", "--watch", "--json") as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["checkpointed"] == 0
        batches.batch([("b", 2)])
        for line in watching.stdout:
            if json.loads(line)["checkpointed"] == 1:
                break
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=30)
    assert (watching.returncode, err) == (0, "")


def test_watch_ends_when_its_reader_ends(world: World, tmp_path: Path) -> None:
    """The reader is a program such as `head -1`, which closes the pipe."""
    world.run()
    with start(tmp_path, "status", "checkpoint", "--watch", "--json") as watching:
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.stdout.close()
        assert watching.wait(30) == 0
        assert watching.stderr is not None
        assert watching.stderr.read() == ""


def test_watch_on_a_terminal_ends_by_ctrl_c(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then treats a pipe as a terminal
    monkeypatch.setenv("TERM", "xterm")
    world.run().batch([("a", 1)])
    with start(tmp_path, "status", "checkpoint", "--watch") as watching:
        assert watching.stdout is not None
        screen = ""
        while "deletable" not in screen:
            screen += watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=30)
    assert (watching.returncode, err) == (0, "")
    assert "1 epoch, 1 row" in screen
    assert "\x1b[" in screen
