"""Queries for the tests of commands: `world` with a target in memory, and `job` with a SQLite file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.cli.job import Job, batches
from tests.protocol.engine import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a new query with the checkpoint `checkpoint`.

    Its target is in memory, so no other process can use it.
    """
    checkpoint = open_backend(str(tmp_path / "checkpoint"))
    made = World(checkpoint, checkpoint)
    made.log_backend = open_backend(str(tmp_path / "checkpoint" / "wal_sink" / made.query_id))
    made.clock.us = time.time_ns() // 1_000
    return made


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a query whose epochs 0 and 1 are flushed, and 2 to 4 are pending. Its retention is an hour."""
    made = Job(tmp_path)
    batches(made, 0, 1)
    made.flush()
    batches(made, 2, 3, 4)
    return made


@pytest.fixture
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the module of the target to the path of child processes."""
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.setenv("PYTHONPATH", str(examples), prepend=os.pathsep)
