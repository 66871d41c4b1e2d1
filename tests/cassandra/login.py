"""Nodes with authentication and permissions."""

from __future__ import annotations

import time

from tests.support.cassandra import options_of
from wal_sink.demo.cassandra import Node
from wal_sink.errors import OptionError
from wal_sink.targets.cassandra.driver.connection import Connection, connect

SETTINGS = {
    "authenticator": "PasswordAuthenticator",
    "authorizer": "CassandraAuthorizer",
    "permissions_validity": "0ms",
    "roles_validity": "0ms",
}
"""Entries of cassandra.yaml. A change by an administrator holds at once."""


def superuser(node: Node) -> Connection:
    """Connect as the superuser, which a node creates some time after it answers."""
    login = {"cassandra.username": "cassandra", "cassandra.password": "cassandra"}
    options = options_of(node, "ks", **login, **{"cassandra.requestTimeout": "60"})
    for _ in range(100):
        try:
            return connect(options)
        except OptionError:
            time.sleep(0.3)
    raise AssertionError("The superuser did not appear.")
