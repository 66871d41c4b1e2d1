"""Worlds over the stores that exist."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.protocol.cases import CASES
from tests.protocol.engine import World


@pytest.fixture(params=["memory", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A new query, on each kind of store."""
    root = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(tmp_path)
    return World(open_backend(f"{root}/checkpoint"), open_backend(f"{root}/log"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was explored: the figures of tests/README.md."""
    if CASES:
        terminalreporter.section("explored")
        for what, how_much in CASES.items():
            terminalreporter.write_line(f"{what}: {how_much}")
