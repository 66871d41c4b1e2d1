"""A real Cassandra for pytest: a container where Docker answers, the embedded node otherwise.

`cassandra` is a started `Node`, one for the whole run. `keyspace` is the name of a new keyspace in it. Pytest
prints at its start which node it is, and why. The variable WAL_SINK_TEST_CASSANDRA forces one: `docker`,
which refuses the run where Docker cannot do it, or `embedded`; the default is `auto`. Nothing starts before a
test asks for it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from tests.support.servers import docker
from tests.support.servers.cassandra_container import VARIABLE, Choice, choose
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import WalSinkError

QUICK_SCHEMA = "-Dcassandra.test.flush_local_schema_changes=false"
"""For Cassandra's Java: a change of the schema takes its processor a sixth of what it does otherwise (0.05 s
for a table). Its tables are written by a shutdown only, so a node that is killed starts without them."""

_CHOICE = pytest.StashKey[Choice]()


def pytest_configure(config: pytest.Config) -> None:
    """Choose, before anything is collected; nothing is started or pulled."""
    try:
        config.stash[_CHOICE] = choose(os.environ.get(VARIABLE, "auto"), docker.find)
    except WalSinkError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str:
    """Say which Cassandra this run uses, and why."""
    return f"cassandra: {config.stash[_CHOICE].said}"


@pytest.fixture(scope="session")
def cassandra(pytestconfig: pytest.Config) -> Iterator[Node]:
    """Start the one node; a test that leaves it stopped or paused takes one of its own."""
    with pytestconfig.stash[_CHOICE].node(java_options=QUICK_SCHEMA) as node:
        yield node


@pytest.fixture
def keyspace(cassandra: Node) -> str:
    """Return the name of a new keyspace, which goes with the node: to drop one takes its processor 0.7 s."""
    name = f"test_{secrets.token_hex(8)}"
    cassandra.create_keyspace(name)
    return name
