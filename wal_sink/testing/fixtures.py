"""A real Cassandra for pytest: a container where Docker answers, the embedded node otherwise.

For the tests of a job, or of a target of your own. In the top-level conftest.py::

    pytest_plugins = ["wal_sink.testing.fixtures"]

and in a test, with a fixture `spark` of your own::

    def test_orders_arrive(cassandra, keyspace, spark, tmp_path):
        cassandra.execute(f"CREATE TABLE {keyspace}.orders (id bigint PRIMARY KEY)")
        with wal_sink.register(spark):
            run_my_job(spark, cassandra.host, cassandra.port, keyspace, tmp_path)
        assert cassandra.execute(f"SELECT id FROM {keyspace}.orders")

`cassandra` is a started `wal_sink.testing.servers.cassandra.Node`, one for the whole run; `keyspace` is the
name of a new keyspace in it, dropped after the test. Which node it is stands in pytest's header, with the
reason. A fixture `cassandra_java_options` of your own, of the scope `session`, gives its Java more options.
The environment variable WAL_SINK_TEST_CASSANDRA forces one: `docker`, which refuses the run
where Docker cannot do it, or `embedded`; the default is `auto`. Nothing starts before a test
asks for it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from wal_sink.errors import WalSinkError
from wal_sink.testing.servers import docker
from wal_sink.testing.servers.cassandra import VARIABLE, Choice, Node, choose

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
def cassandra_java_options() -> str:
    """Return no further options for the node's Java."""
    return ""


@pytest.fixture(scope="session")
def cassandra(pytestconfig: pytest.Config, cassandra_java_options: str) -> Iterator[Node]:
    """Start the one node; a test that leaves it stopped or paused takes one of its own."""
    with pytestconfig.stash[_CHOICE].node(java_options=cassandra_java_options) as node:
        yield node


@pytest.fixture
def keyspace(cassandra: Node) -> Iterator[str]:
    """Return the name of a new keyspace in `cassandra`, dropped after the test."""
    name = f"test_{secrets.token_hex(8)}"
    cassandra.create_keyspace(name)
    yield name
    cassandra.session().execute(f"DROP KEYSPACE {name}", timeout=None)  # it may have many tables
