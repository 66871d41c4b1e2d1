"""The log messages of a query's start: a block that is shown by default, and warnings."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.protocol.engine import World
from tests.support.programs import ran
from tests.test_options import GIVEN
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import Configuration, configure
from wal_sink.model import paths
from wal_sink.options import SinkOptions
from wal_sink.protocol import state as protocol
from wal_sink.protocol.state import Actor, Opening
from wal_sink.spark.log_messages import another_process, block, log_pending, log_start
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget
from wal_sink.wal.store import LogStore, advance, newest, update


def block_of(options: dict[str, str], *, flushes_here: bool = True) -> str:
    """Return the block of lines that a start with these options logs."""
    configuration = configure(GIVEN | options)
    return block("q-1", configuration, "file:///log/q-1", [], flushes_here=flushes_here)


def test_start_message_has_a_line_for_each_setting() -> None:
    lines = block_of({}).splitlines()
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


def test_start_message_follows_the_options() -> None:
    text = block_of(
        {"cassandra.nulls": "write", "wal.onFull": "fail", "wal.maxBytes": "5"}, flushes_here=False
    )
    for words in (
        "write: a null clears",
        "5 bytes of unflushed data (wal.maxBytes), then the next micro-batch fails",
        "another process: `wal-sink flush file:///data/checkpoint --follow`",
    ):
        assert words in text


def test_target_without_description_is_shown_by_its_options() -> None:
    assert MemoryTarget(MemoryOptions(keys="k")).description == {"target": "memory", "keys": "k"}


def warnings_of(
    caplog: pytest.LogCaptureFixture,
    configuration: Configuration,
    store: LogStore,
    settings: dict[str, str],
) -> list[str]:
    """Return the warnings of a start."""
    caplog.clear()
    log_start("q-1", configuration, store, [], settings.get, flushes_here=True)
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


def test_target_given_up_logs_a_warning_at_start(caplog: pytest.LogCaptureFixture) -> None:
    store = open_backend(f"memory://{uuid.uuid4().hex}")
    own = {f"orders.{name}": text for name, text in GIVEN.items() if name != "checkpointLocation"}
    configuration = configure(
        own
        | {
            "targets": "orders,lake",
            "checkpointLocation": "/data/checkpoint",
            "orders.target": "cassandra",
            "lake.target": "delta",
            "lake.delta.path": "/lake/orders",
        }
    )
    names = ("orders", "lake")
    opening = Opening("q-1", "memory://checkpoint", "run-1", names, configuration.public)
    actor = Actor("host:1", 1)
    advance(store, None, protocol.create(opening, "log", -1, actor))
    update(store, lambda state: protocol.give_up_target(state, "orders", actor))
    (warning,) = warnings_of(caplog, configuration, store, {})
    assert warning.startswith("query q-1: target orders was given up, so it gets no rows")


@pytest.mark.parametrize("prefix", ["spark.python.worker", "spark.sql.execution.pyspark.udf"])
@pytest.mark.parametrize(
    ("kill", "idle_s", "warns"),
    [("true", "60", 1), ("TRUE", "60s", 1), ("true", "0", 0), ("false", "60", 0), ("true", "", 0)],
)
def test_settings_that_kill_idle_workers_log_a_warning(
    prefix: str, kill: str, idle_s: str, warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark ends workers only if both settings are set."""
    settings = {f"{prefix}.killOnIdleTimeout": kill, f"{prefix}.idleTimeoutSeconds": idle_s}
    store = open_backend("memory://idle")
    warnings = warnings_of(caplog, configure(GIVEN), store, settings)
    assert len(warnings) == warns
    for warning in warnings:
        assert f"{prefix}.killOnIdleTimeout is true" in warning
        assert f"{prefix}.idleTimeoutSeconds is {idle_s}" in warning
        assert warning.endswith(f"Set {prefix}.killOnIdleTimeout to false")


def test_query_starts_if_its_target_fails_to_describe_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Silent(MemoryTarget):
        @property
        def description(self) -> dict[str, str]:
            raise KeyError("nothing")

    configuration = configure(GIVEN)
    silent = configuration.destinations[0]._replace(target=Silent(MemoryOptions(keys="k")))
    odd = Configuration(SinkOptions(checkpoint="/c"), (silent,), configuration.location)
    warnings = warnings_of(caplog, odd, open_backend("memory://odd"), {})
    assert warnings == ["query q-1: its settings could not be shown"]


def test_report_that_cannot_be_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise `close()` with `flush=False` would raise."""
    name = f"memory://{uuid.uuid4().hex}"
    world = World(open_backend(f"{name}/checkpoint"), open_backend(f"{name}/log"))
    world.run().batch([("a", 1)])
    checkpoint, store = Checkpoint(world.checkpoint), world.log_backend
    log_pending("q-1", checkpoint, store, another_process)
    assert "1 epoch of query q-1 is pending" in caplog.text
    caplog.clear()
    state = newest(store)
    assert state is not None
    store.replace(paths.REPORT.path(state.targets[0].name), b"damaged")
    log_pending("q-1", checkpoint, store, another_process)
    assert "cannot be read" in caplog.text


PROGRAM = """
import logging, sys
{setup}
from state_backends import open_backend
from tests.test_options import GIVEN
from wal_sink.configuration import configure
from wal_sink.spark.log_messages import log_start
from wal_sink.wal.store import LogStore
log_start("q-1", configure(GIVEN), open_backend("memory://log"), [], {{}}.get, flushes_here=True)
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
def test_start_message_shows_at_default_log_level(setup: str, shown: int) -> None:
    """It is on standard error, unless the application has set up logging."""
    program = [sys.executable, "-c", PROGRAM.format(setup=setup)]
    done = ran(program, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("wal_sink: query q-1 starts") == shown, done.stderr
    assert done.stderr.count("guarantee") == shown
