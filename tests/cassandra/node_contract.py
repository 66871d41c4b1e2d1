"""The tests of a `Node`, for the embedded node and the container."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pytest

from wal_sink.demo.cassandra import Node
from wal_sink.demo.server import DidNotStart


class NodeContract(ABC):
    """Subclass as `Test…` and implement the methods below."""

    @abstractmethod
    def new(self, folder: Any, **settings: object) -> Node:
        """Return a new node.

        :param folder: a temporary folder of the node's own.
        :param settings: of cassandra.yaml.
        """

    @abstractmethod
    def processes(self, node: Node) -> list[int]:
        """Return the process ids of a node, read from elsewhere than the node."""

    @abstractmethod
    def log(self, node: Node) -> str:
        """Return everything that a node has printed."""

    @pytest.fixture(scope="class")
    @classmethod
    def node(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
        """A running node that tests stop, kill and pause."""
        with cls().new(tmp_path_factory.mktemp("node")) as node:
            node.create_keyspace("kept")
            node.execute("CREATE TABLE kept.rows (id int PRIMARY KEY, value text)")
            node.execute("INSERT INTO kept.rows (id, value) VALUES (%s, %s)", (1, "one"))
            yield node

    def test_node_executes_statements_and_returns_rows(self, node: Node) -> None:
        (row,) = node.execute("SELECT id, value FROM kept.rows WHERE id = 1")
        assert (row.id, row.value) == (1, "one")
        assert node.start() is node, "starting a running node changes nothing"

    def test_acknowledged_row_survives_kill_of_a_paused_node(self, node: Node) -> None:
        port, (process,) = node.port, self.processes(node)
        node.execute("INSERT INTO kept.rows (id, value) VALUES (2, 'acknowledged')")
        node.pause()
        node.kill()
        assert not node.running
        assert self.processes(node) == []
        with pytest.raises(RuntimeError, match="not running"):
            node.execute("SELECT * FROM kept.rows")

        node.start()
        assert node.port == port
        assert self.processes(node) != [process]
        assert node.execute("SELECT value FROM kept.rows WHERE id = 2") == [("acknowledged",)]

    def test_paused_node_answers_only_after_it_resumes(self, node: Node) -> None:
        session = node.session()
        node.pause()
        assert node.running
        pending = session.execute_async("SELECT value FROM kept.rows WHERE id = 1")
        answered = threading.Event()
        pending.add_callbacks(lambda rows: answered.set(), lambda error: answered.set())
        assert not answered.wait(1)
        node.resume()
        assert answered.wait(10)
        assert pending.result().one() == ("one",)

        node.pause()
        node.resume()
        assert node.execute("SELECT value FROM kept.rows WHERE id = 1") == [("one",)]

    def test_paused_node_stops_by_a_regular_shutdown(self, node: Node) -> None:
        node.pause()
        node.stop()
        assert not node.running
        assert "Cassandra shutdown complete" in self.log(node)[-2000:]
        node.stop()
        node.start()
        assert node.execute("SELECT value FROM kept.rows WHERE id = 1") == [("one",)]

    def test_second_node_has_its_own_port_and_keyspaces(
        self, node: Node, cassandra: Node, keyspace: str
    ) -> None:
        assert abs(node.port - cassandra.port) > 1
        keyspaces = "SELECT keyspace_name FROM system_schema.keyspaces"
        assert (keyspace,) in cassandra.execute(keyspaces)
        assert (keyspace,) not in node.execute(keyspaces)
        assert ("kept",) not in cassandra.execute(keyspaces)
        assert cassandra.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY)") == []

    def test_closed_node_has_no_process_left(self, node: Node) -> None:
        node.close()
        assert not node.running
        assert self.processes(node) == []
        node.close()

    def test_error_of_a_failed_start_shows_the_log(self, tmp_path: Any) -> None:
        node = self.new(tmp_path, no_such_setting=1)
        with pytest.raises(DidNotStart, match="no_such_setting") as caught:
            node.start()
        assert "first error in the lines above" in caught.value.remedy
        assert not node.running
        node.close()

    def test_taken_port_is_refused(self, tmp_path: Any) -> None:
        node = self.new(tmp_path)
        with (
            socket.create_server((node.host, node.port)),
            pytest.raises(DidNotStart, match=str(node.port)),
        ):
            node.start()
        assert not node.running
        node.close()
