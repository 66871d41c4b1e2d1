"""What is said when a query starts: one block that shows at default, warnings for what may surprise."""

from __future__ import annotations

import logging
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.test_options import GIVEN
from wal_sink.configuration import Configuration, configure
from wal_sink.options import SinkOptions
from wal_sink.protocol import state as protocol
from wal_sink.protocol.state import Actor, Opening
from wal_sink.spark.internals.streaming_query import Source
from wal_sink.spark.messages import (
    block,
    cannot_replay,
    in_force,
    log_start,
    unreplayable,
)
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget
from wal_sink.wal.states import advance, update
from wal_sink.wal.store import LogStore

SECRETS = {
    "cassandra.username": "ann",
    "cassandra.password": "Geheim-1",
    "wal.location": "s3://bucket/log",
    "wal.storageOptions": '{"secret": "Geheim-2", "key": "Geheim-3"}',
}
SOCKET = Source("TextSocketMicroBatchStream", "TextSocketV2[host: here, port: 9]")
FILES = Source("FileStreamSource", "FileStreamSource[file:/TextSocketMicroBatchStream]")


def said(options: dict[str, str], *, flushes_here: bool = True) -> str:
    return block(
        "q-1",
        in_force(
            configure(GIVEN | options),
            "file:///log/q-1",
            [],
            flushes_here=flushes_here,
        ),
    )


def test_block_says_what_is_in_force() -> None:
    """Guarantee, target, table, nulls policy, log, checkpoint, budget, who flushes: a line each."""
    lines = said({}).splitlines()
    assert lines[0] == "wal_sink: query q-1 starts"
    texts = dict(line.strip().split("  ", 1) for line in lines[1:])
    texts = {heading: text.strip() for heading, text in texts.items()}
    assert list(texts) == [
        *("guarantee", "target", "table", "nulls", "newest", "log", "checkpoint", "budget"),
        "flushed by",
    ]
    assert texts["guarantee"].startswith("exactly-once")
    assert texts["target"] == "cassandra at 127.0.0.1, port 9042, LOCAL_QUORUM"
    assert texts["table"] == "shop.orders, ledger in shop.wal_sink_ledger"
    assert texts["nulls"] == "unset: a null keeps the older value (cassandra.nulls)"
    assert (texts["log"], texts["checkpoint"]) == ("file:///log/q-1", "file:///data/checkpoint")
    assert "10,737,418,240 bytes" in texts["budget"]
    assert "wal.onFull=block" in texts["budget"]
    assert texts["flushed by"].startswith("this process")


def test_block_follows_the_options() -> None:
    """What the user chose, not what is usual."""
    text = said(
        {"cassandra.nulls": "write", "wal.onFull": "fail", "wal.maxBytes": "5"}, flushes_here=False
    )
    for words in (
        "write: a null clears",
        "5 bytes of unflushed data (wal.maxBytes), then the next micro-batch fails",
        "another process: `wal-sink flush file:///data/checkpoint --follow`",
    ):
        assert words in text


def test_block_has_no_secret() -> None:
    """Of target or store."""
    text = said(SECRETS)
    assert "Geheim" not in text
    assert "cassandra at" in text


def test_target_without_description_is_shown_by_its_shape() -> None:
    """Without a line of its code."""
    target = MemoryTarget(MemoryOptions(keys="k"))
    assert target.description == {"target": "memory", "keys": "k"}


def test_source_that_cannot_replay_is_warned_of() -> None:
    """By its class: names of files, or of unknown sources, mean nothing."""
    unknown = Source("MyStream", "TextSocketV2")
    assert cannot_replay([FILES, unknown]) == []
    assert cannot_replay([SOCKET, FILES, SOCKET]) == [SOCKET.description]
    text = unreplayable([SOCKET.description])
    for words in (SOCKET.description, "at-most-once", "Kafka"):
        assert words in text
    lines = in_force(configure(GIVEN), "log", [SOCKET.description], flushes_here=True)
    assert lines["guarantee"].startswith(f"at-most-once from {SOCKET.description}")


def unset(_name: str) -> None:
    """Return no setting of a session."""


def start(folder: Path, *sources: Source) -> None:
    """Say what is said at a start."""
    plain = configure(GIVEN | {"checkpointLocation": str(folder)})
    log = LogStore(open_backend(str(folder / "not" / "there" / "yet")))
    log_start("q-1", plain, log, sources, unset, flushes_here=True)


def test_start_message_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One record for the block, one for each warning."""
    with caplog.at_level(logging.INFO):
        start(tmp_path, SOCKET, FILES)
        start(tmp_path)
    levels = [(r.levelname, r.getMessage().splitlines()[0]) for r in caplog.records]
    assert [level for level, _ in levels] == ["INFO", "WARNING", "INFO"]
    assert SOCKET.description in levels[1][1]
    assert levels[2][1] == "wal_sink: query q-1 starts"


LAKE = {
    "targets": "orders,lake",
    "checkpointLocation": "/data/checkpoint",
    "orders.target": "cassandra",
    **{f"orders.{name}": value for name, value in GIVEN.items() if name != "checkpointLocation"},
    "lake.target": "delta",
    "lake.delta.path": "/lake/orders",
}


def test_target_given_up_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """It is named among others, and would get nothing without a word."""
    store = LogStore(open_backend(f"memory://{uuid.uuid4().hex}"))
    configuration = configure(LAKE)
    names = ("orders", "lake")
    opening = Opening("q-1", "memory://checkpoint", "run-1", names, configuration.public)
    actor = Actor("host:1", 1)
    advance(store, None, protocol.create(opening, "log", -1, actor))
    update(store, lambda state: protocol.give_up_target(state, "orders", actor))
    log_start("q-1", configuration, store, [], unset, flushes_here=True)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("query q-1: target orders was given up, so it gets no rows")


def test_path_that_is_ignored_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Of `start("/a/path")`: without a word, a user looks for the rows there."""
    log = LogStore(open_backend("memory://path"))
    for name in ("path", "PATH"):
        caplog.clear()
        log_start("q-1", configure({**GIVEN, name: "/x"}), log, [], unset, flushes_here=True)
        (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert warning.startswith("query q-1: nothing is written to the path /x: its rows go to")


@pytest.mark.parametrize("prefix", ["spark.python.worker", "spark.sql.execution.pyspark.udf"])
@pytest.mark.parametrize(
    ("kill", "idle_s", "warns"),
    [("true", "60", 1), ("TRUE", "60s", 1), ("true", "0", 0), ("false", "60", 0), ("true", "", 0)],
)
def test_killed_idle_workers_are_warned_of(
    prefix: str, kill: str, idle_s: str, warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Either setting alone ends no worker."""
    settings = {f"{prefix}.killOnIdleTimeout": kill, f"{prefix}.idleTimeoutSeconds": idle_s}
    log = LogStore(open_backend("memory://idle"))
    log_start("q-1", configure(GIVEN), log, [], settings.get, flushes_here=True)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == warns
    for warning in warnings:
        assert f"{prefix}.killOnIdleTimeout is true" in warning
        assert f"{prefix}.idleTimeoutSeconds is {idle_s}" in warning
        assert warning.endswith(f"Set {prefix}.killOnIdleTimeout to false")


def test_whatever_goes_wrong_the_query_starts(caplog: pytest.LogCaptureFixture) -> None:
    """A target that cannot describe itself does not fail the start."""

    class Silent(MemoryTarget):
        @property
        def description(self) -> dict[str, str]:
            raise KeyError("nothing")

    configuration = configure(GIVEN)
    target = Silent(MemoryOptions(keys="k"))
    silent = configuration.destinations[0]._replace(target=target)
    odd = Configuration(SinkOptions(checkpoint="/c"), (silent,), configuration.location)
    log_start("q-1", odd, LogStore(open_backend("memory://odd")), [], unset, flushes_here=True)
    assert "its settings could not be shown" in caplog.text


PROGRAM = """
import logging, sys
{setup}
from pathlib import Path
from tests.spark.test_messages import start
start(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("setup", "shown"),
    [
        ("", 1),
        ("logging.basicConfig(level=logging.INFO)", 1),
        ("logging.basicConfig(level=logging.WARNING)", 0),
        ("logging.getLogger('wal_sink').addHandler(logging.NullHandler())", 0),
    ],
)
def test_start_message_shows_at_default_log_level(setup: str, shown: int, tmp_path: Path) -> None:
    """On standard error where the application has not set up logging; else as the application has it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=setup), str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert done.stderr.count("wal_sink: query q-1 starts") == shown, done.stderr
    assert done.stderr.count("guarantee") == shown
