"""The choice of the Cassandra node for a run of tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.programs import ran
from tests.support.servers.cassandra_container import CassandraContainer, choose

ROOT = Path(__file__).parents[2]


def docker_is_there(image: str) -> str:
    return "28.0"


def test_cassandra_is_a_container_if_docker_answers() -> None:
    for wanted in ("auto", "docker"):
        choice = choose(wanted, docker_is_there)
        assert choice.node is CassandraContainer
        assert choice.said == "container cassandra:5.0 (Docker 28.0)"


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        ("auto", 0, "cassandra: embedded node 5.0.9, since no Docker engine answers ([Errno 2]"),
        ("embedded", 0, "cassandra: embedded node 5.0.9, as WAL_SINK_TEST_CASSANDRA says"),
        ("docker", 4, "WAL_SINK_TEST_CASSANDRA is docker, and no Docker engine answers"),
        ("podman", 4, "WAL_SINK_TEST_CASSANDRA is 'podman'"),
    ],
)
def test_pytest_header_names_node_and_reason(
    wanted: str, code: int, words: str, tmp_path: Path
) -> None:
    """Pytest runs in another project, with only the plug-in that the documentation names."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.support.cassandra_fixtures"]\n')
    (tmp_path / "test_one.py").write_text("def test_one(cassandra, keyspace): pass\n")
    ended = ran(
        [sys.executable, "-m", "pytest", "-W", "error", "--collect-only"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DOCKER_HOST": f"unix://{tmp_path}/nowhere",
            "WAL_SINK_TEST_CASSANDRA": wanted,
        },
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert words in ended.stdout + ended.stderr
    assert ("test_one.py" in ended.stdout) == (code == 0)
