"""The choice of the Cassandra node for a run of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.cassandra_container import CassandraContainer, choose, find_engine
from wal_sink.demo.cassandra import EmbeddedCassandra
from wal_sink.errors import WalSinkError


def test_cassandra_is_a_container_if_docker_answers() -> None:
    for wanted in ("auto", "docker"):
        choice = choose(wanted, lambda _: "28.0")
        assert choice.node is CassandraContainer
        assert choice.said == "container cassandra:5.0 (Docker 28.0)"


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("auto", "embedded node 5.0.9, since no Docker engine answers ([Errno 2]"),
        ("embedded", "embedded node 5.0.9, as WAL_SINK_TEST_CASSANDRA says"),
        ("docker", "WAL_SINK_TEST_CASSANDRA is docker, and no Docker engine answers"),
        ("podman", "WAL_SINK_TEST_CASSANDRA is 'podman'"),
    ],
)
def test_choice_without_docker_says_its_reason(
    wanted: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that is forced, and an unknown word, fail the run."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere")
    if wanted in {"auto", "embedded"}:
        choice = choose(wanted, find_engine)
        assert choice.node is EmbeddedCassandra
        assert choice.said.startswith(text)
    else:
        with pytest.raises(WalSinkError, match=text):
            choose(wanted, find_engine)
