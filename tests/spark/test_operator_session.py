"""A night of an operator: every command, as a process, against a query that lives through an outage."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import wal_sink
from state_backends import open_backend
from tests.cli.shell import FOLLOWS, run, start
from tests.spark.live_query import live_query
from tests.spark.tables import Table
from tests.support.waiting import until
from wal_sink.model import paths
from wal_sink.testing.servers.cassandra import EmbeddedCassandra
from wal_sink.wal.log import Log

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.spark,
    pytest.mark.cassandra,
    pytest.mark.timeout(600),
]

PATIENCE_S = 180.0


class Shell:
    """What an operator has: a shell in the folder of the checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.checkpoint = folder / "checkpoint"

    def both(self, verb: str, *arguments: object, code: int = 0) -> tuple[str, dict[str, Any]]:
        """Run a command as a person and as a program do, at the same time; return what each reads."""
        with ThreadPoolExecutor(1) as pool:
            text = pool.submit(run, self._folder, verb, "checkpoint", *arguments)
            shown = self.json(verb, *arguments, code=code)
            done = text.result()
        assert done.code == code, done.err
        return done.out + done.err, shown

    def json(self, verb: str, *arguments: object, code: int = 0) -> dict[str, Any]:
        """Run a command for a program."""
        done = run(self._folder, verb, "checkpoint", *arguments, "--json")
        assert done.code == code, done.err
        return done.document

    @contextmanager
    def going_on(
        self, verb: str, *arguments: str, says: str = "", lines: list[str] | None = None
    ) -> Iterator[Callable[[], str]]:
        """Start a command that goes on; yield what ends it, as Ctrl-C does, and returns its output.

        This waits until it goes on: before that, Ctrl-C ends it with an error, and it has seen nothing yet.

        :param says: what standard error begins with then; if it is empty, standard output has a line.
        :param lines: gets what it prints, line by line, as it comes.
        """
        with (
            start(self._folder, verb, "checkpoint", *arguments) as process,
            ThreadPoolExecutor(2) as readers,
        ):
            assert process.stdout is not None
            assert process.stderr is not None
            taken: list[str] = [] if lines is None else lines

            def end() -> str:
                process.send_signal(signal.SIGINT)
                printed.result(timeout=60)
                assert (process.wait(timeout=60), complained.result(timeout=60)) == (0, "")
                return "".join(taken)

            try:
                assert process.stderr.read(len(says)) == says
                if not says:
                    taken.append(process.stdout.readline())
                # As it comes: a full pipe would stop it.
                printed = readers.submit(taken.extend, process.stdout)
                complained = readers.submit(process.stderr.read)
                yield end
            finally:
                if process.poll() is None:
                    process.kill()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_night_with_an_outage(spark: SparkSession, shell: Shell) -> None:
    """What each command says before, in and after the outage; the query is not disturbed by any."""
    with EmbeddedCassandra() as node, wal_sink.register(spark) as sink:
        node.create_keyspace("shop")
        table = Table(node, "shop")
        with live_query(spark, table, str(shell.checkpoint)) as query:
            until(lambda: sink.status(query).flushed >= 0, PATIENCE_S)
            in_health(shell)
            seen: list[str] = []
            with shell.going_on("status", "--watch", "--json", lines=seen) as end_watching:
                node.pause()
                in_the_outage(shell)
                with shell.going_on("flush", "--follow", "--json", says=FOLLOWS) as end_following:
                    node.resume()
                    behind = shell.json("status")["checkpointed"]
                    until(lambda: sink.status(query).flushed >= behind, PATIENCE_S)
                    followed = json.loads(end_following())
                    assert followed["why"] == "stopped"
                after_the_outage(shell, behind)
                until(lambda: json.loads(seen[-1])["last_error"] is None, PATIENCE_S)
                watched = list(map(json.loads, end_watching().splitlines()))
            assert query.isActive
            assert query.exception() is None
        sink.await_flushed(query, timeout=PATIENCE_S)
        drained(shell)
        found = table.ids()
        assert found == list(range(len(found)))
    assert_told(watched)


def in_health(shell: Shell) -> None:
    """A process flushes, nothing is wrong."""
    said, shown = shell.both("status")
    assert (shown["flusher_alive"], shown["last_error"], shown["remedy"]) == (True, None, None)
    assert shown["flusher"].rpartition(":")[2] == str(os.getpid())
    for words in (shown["query_id"], "alive: ", "last error    none"):
        assert words in said
    said, found = shell.both("verify")
    assert (found["findings"], found["ledger"] is None) == ([], False)
    assert "Nothing is wrong" in said


def in_the_outage(shell: Shell) -> None:
    """`status` and `inspect` answer, and say what the log holds; what needs the target says so."""
    until(lambda: "TargetUnavailable" in (shell.json("status")["last_error"] or ""), PATIENCE_S)
    said, before = shell.both("status")
    assert (before["flusher_alive"], before["safe_to_delete"]) == (True, False)
    assert before["pending_rows"] > before["pending_epochs"] > 0
    # The second one is told for an error of the driver as it came: which step the pause meets decides.
    assert before["remedy"].startswith(("See t", "Nothing, if this is an outage"))
    for words in ("epochs, ", "TargetUnavailable: ", "what to do", "no: ", "are not flushed"):
        assert words in said

    said, found = shell.both("inspect")
    listed = {line["epoch"]: line for line in found["epochs"]}
    waiting = [epoch for epoch, line in listed.items() if line["state"] == "waiting"]
    assert waiting == list(range(before["flushed"] + 1, waiting[-1] + 1))
    assert listed[before["flushed"]]["state"] == "flushed"
    assert "waiting" in said
    epoch = next(epoch for epoch in waiting if listed[epoch]["rows"])
    said, found = shell.both("inspect", epoch)
    (attempt,) = found["attempts"]
    assert [column["name"] for column in attempt["columns"]] == ["key", "id", "text"]
    assert attempt["sample"][0]["text"] == f"row {attempt['sample'][0]['id']}"
    assert uuid.UUID(attempt["sample"][0]["key"]).version == 4
    for words in ("Schema", "Segments", "Some rows", "row ", "source offsets"):
        assert words in said

    said, found = shell.both("verify", code=4)
    assert [finding["kind"] for finding in found["findings"]] == ["TargetUnavailable"]
    assert "TargetUnavailable" in said
    assert shell.json("verify", "--offline")["findings"] == []
    with shell.going_on("status", "--watch") as end_watching:
        assert shell.json("flush", code=4)["error"] == "TargetUnavailable"
        assert "TargetUnavailable: " in end_watching()
    found = shell.json("flush", "--dry-run")
    assert found["trimmed"] == []
    assert found["epochs"] > 0

    after = shell.json("status")
    assert after["flushed"] == before["flushed"]
    for grows in ("checkpointed", "pending_epochs", "pending_rows", "oldest_pending_seconds"):
        assert after[grows] > before[grows], grows


def after_the_outage(shell: Shell, behind: int) -> None:
    """What waited has arrived, without any action of an operator; `flush` finds little left to do."""
    said, flushed = shell.both("flush")
    assert flushed["flushed"] >= behind
    assert " flushed: " in said
    # The query's own flusher says what it met last, until its next try: ten seconds at most.
    until(lambda: shell.json("status")["last_error"] is None, PATIENCE_S)
    said, shown = shell.both("status")
    assert (shown["last_error"], shown["remedy"], shown["flusher_alive"]) == (None, None, True)
    assert "last error    none" in said
    assert shell.json("inspect")["epochs"][0]["state"] == "flushed"
    assert shell.json("verify")["findings"] == []


def drained(shell: Shell) -> None:
    """The query has stopped. A task that Spark ran twice comes late with a segment: `flush` trims it."""
    said, shown = shell.both("status")
    between = shown["published"] > shown["checkpointed"]  # where `stop` met the last epoch
    assert (shown["pending_epochs"], shown["safe_to_delete"]) == (0, not between)
    assert ("not checkpointed yet" if between else "yes, checkpoint and log") in said
    log = open_backend(shown["log"])
    assert Log(log).flushed_epochs() == list(range(shown["flushed"] + 1)), "every epoch, in order"
    path = paths.SEGMENT.path(paths.SegmentName(0, 0, 1, "late", "0" * 32))
    log.create(path, b"rows")
    said, found = shell.both("flush", "--dry-run")
    assert [file["path"] for file in found["trimmed"]] == [path]
    assert "1 object of" in said
    assert log.list(paths.segment_folder(0)) == [path]
    assert [file["path"] for file in shell.json("flush")["trimmed"]] == [path]
    assert log.list(paths.segment_folder(0)) == []


def assert_told(watched: list[dict[str, Any]]) -> None:
    """`status --watch --json` has told all of it, in its order, and no document takes anything back."""
    for name in ("checkpointed", "published", "flushed"):
        ids = [shown[name] for shown in watched]
        assert ids == sorted(ids)
    failing = [shown for shown in watched if "TargetUnavailable" in (shown["last_error"] or "")]
    lags = [s["pending_epochs"] for s in failing if s["flushed"] == failing[0]["flushed"]]
    assert lags == sorted(lags)
    assert lags[-1] > lags[0] + 2, "the query went on"
    first, last = watched[0], watched[-1]
    assert (first["last_error"], last["last_error"]) == (None, None)
    assert last["pending_epochs"] < lags[-1]
