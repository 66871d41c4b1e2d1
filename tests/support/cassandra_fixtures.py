"""Fixtures of a real Cassandra: a container if a Docker engine answers, otherwise the embedded node.

`cassandra` is a started `Node`, one for the whole run; `keyspace` is the name of a new keyspace in it.
Pytest's header names the node and the reason. The variable WAL_SINK_TEST_CASSANDRA forces a node: `docker`,
which fails the run without a Docker engine, or `embedded`; the default is `auto`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from tests.support.servers.cassandra_container import VARIABLE, Choice, choose, find_engine
from wal_sink.demo.cassandra import Node
from wal_sink.errors import WalSinkError

QUICK_SCHEMA = "-Dcassandra.test.flush_local_schema_changes=false"
"""A Java option of Cassandra: a change of the schema takes a sixth of its time, 0.05 seconds for a table. A
killed node loses the changes of its schema.
"""

_CHOICE = pytest.StashKey[Choice]()


def pytest_configure(config: pytest.Config) -> None:
    """Choose the node, before any test is collected; start nothing."""
    try:
        config.stash[_CHOICE] = choose(os.environ.get(VARIABLE, "auto"), find_engine)
    except WalSinkError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str:
    """Return the line that names the node and the reason."""
    return f"cassandra: {config.stash[_CHOICE].said}"


@pytest.fixture(scope="session")
def cassandra(pytestconfig: pytest.Config) -> Iterator[Node]:
    """Start the node; a test that stops or pauses a node starts its own."""
    with pytestconfig.stash[_CHOICE].node(java_options=QUICK_SCHEMA) as node:
        yield node


@pytest.fixture
def keyspace(cassandra: Node) -> str:
    """Return the name of a new keyspace; it is not dropped, since that takes 0.7 seconds of CPU."""
    name = f"test_{secrets.token_hex(8)}"
    cassandra.create_keyspace(name)
    return name
