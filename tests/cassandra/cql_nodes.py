"""Cassandra nodes in memory: the driver's cluster, session, pools and connections, without sockets.

A node reads the driver's bytes by the native protocol, and answers in the thread that pushes. So tests place
faults to the byte, and wait for nothing.
"""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
from cassandra.cluster import Cluster, Session
from cassandra.connection import Connection, DefaultEndPoint
from cassandra.cqltypes import BytesType, LongType
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host
from cassandra.protocol import ColumnMetadata
from cassandra.query import PreparedStatement

from tests.support.cql_driver import OwnStatements, plan_of
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions
from wal_sink.targets.cassandra.driver.connection import Connection as OpenConnection
from wal_sink.targets.cassandra.driver.connection import _profiles
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, statement_head
from wal_sink.targets.cassandra.statements import Statement

_HEADER = struct.Struct(">BBhBi")
ERROR, OPTIONS, SUPPORTED, RESULT, BATCH = 0x00, 0x05, 0x06, 0x08, 0x0D
_SUPPORTED = b"\0\x02\0\x0bCQL_VERSION\0\x01\0\x053.4.7\0\x0bCOMPRESSION\0\0"
VOID = struct.pack(">i", 1)
UNPREPARED = 0x2500
OVERLOADED = 0x1001
INVALID = 0x2200

NOTHING = (0, set[int](), set[int]())
"""The result of `Nodes.in_use` for an idle connection: no request in flight, all streams free, none late."""


class Frame(NamedTuple):
    """A request or an answer."""

    stream: int
    opcode: int
    body: bytes


Answer = Callable[[Frame], Frame | None]
"""Returns a node's answer to a request; None for no answer yet."""


def well(request: Frame) -> Frame:
    """Answer as a healthy node does."""
    if request.opcode == OPTIONS:
        return Frame(request.stream, SUPPORTED, _SUPPORTED)
    return Frame(request.stream, RESULT, VOID)


def error(request: Frame, code: int, more: bytes = b"") -> Frame:
    """Refuse a request."""
    return Frame(request.stream, ERROR, struct.pack(">iH", code, 1) + b"x" + more)


class Wire(Connection):  # type: ignore[misc]  # the driver has no types
    """A connection to a node in memory."""

    made: ClassVar[list[Wire]] = []
    answers: ClassVar[Answer] = staticmethod(well)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pushes: list[list[Frame]] = []
        """The requests of each push."""
        self.answer = type(self).answers
        if self.protocol_version >= 5:
            self._enable_checksumming()
        Wire.made.append(self)

    @classmethod
    def factory(cls, endpoint: Any, timeout: float, *args: Any, **kwargs: Any) -> Wire:
        return cls(endpoint, *args, **kwargs)

    @classmethod
    def create_timer(cls, timeout: float, callback: Any) -> Any:
        return Timer()

    def push(self, data: bytes) -> None:
        """Read requests, and answer them."""
        if self.is_closed:
            return
        pushed = list(_frames(self._unpacked(data)))
        self.pushes.append(pushed)
        for request in pushed:
            if (answered := self.answer(request)) is not None:
                self.reply(answered)

    def reply(self, *answered: Frame) -> None:
        """Receive answers in one segment."""
        self.receive(self.packed(*answered))

    def packed(self, *answered: Frame) -> bytes:
        """Return answers as a node sends them: in a segment, or as frames."""
        return self._packed(b"".join(map(self._framed, answered)))

    def receive(self, data: bytes) -> None:
        """Receive bytes, as by one read of a socket."""
        self._iobuf.write(data)
        self.process_io_buffer()

    def close(self) -> None:
        """Lose the connection: requests in flight fail."""
        if self.is_closed:
            return
        self.is_closed: bool = True
        if not self.is_defunct:
            self.error_all_requests(ConnectionError("lost"))

    @property
    def requests(self) -> list[Frame]:
        """All batches that were pushed."""
        return [frame for push in self.pushes for frame in push if frame.opcode == BATCH]

    def _framed(self, frame: Frame) -> bytes:
        version = 0x80 | self.protocol_version
        return _HEADER.pack(version, 0, frame.stream, frame.opcode, len(frame.body)) + frame.body

    def _packed(self, frames: bytes) -> bytes:
        if not self._is_checksumming_enabled:
            return frames
        self._segment_codec.encode(buffer := io.BytesIO(), frames)
        return buffer.getvalue()

    def _unpacked(self, data: bytes) -> bytes:
        if not self._is_checksumming_enabled:
            return data
        read, payload = io.BytesIO(data), b""
        while read.tell() < len(data):
            header = self._segment_codec.decode_header(read)
            payload += self._segment_codec.decode(read, header).payload
        return payload


class Timer:
    """A timer of the driver that never rings."""

    def cancel(self) -> None:
        pass


def _frames(data: bytes) -> Iterator[Frame]:
    while data:
        _, _, stream, opcode, length = _HEADER.unpack_from(data)
        yield Frame(stream, opcode, data[_HEADER.size :][:length])
        data = data[_HEADER.size + length :]


class Nodes(NamedTuple):
    """A session of the driver over nodes in memory."""

    session: Any
    hosts: list[Any]

    @property
    def connection(self) -> Any:
        """The session as the sink has it."""
        return OpenConnection(None, self.session, "dc")

    def wire(self, number: int = 0) -> Wire:
        """Return the connection to a node."""
        connection: Wire = self.session._pools[self.hosts[number]]._connection
        return connection

    def in_use(self, number: int = 0) -> tuple[int, set[int], set[int]]:
        """Return the driver's number of requests in flight, the streams in use, and the late streams."""
        wire = self.wire(number)
        every = set(range(wire.highest_request_id + 1))
        return wire.in_flight, every - set(wire.request_ids), set(wire.orphaned_request_ids)


@contextmanager
def nodes(count: int = 1, version: int = 5, *, answers: Answer = well) -> Iterator[Nodes]:
    """Connect to nodes of one datacenter, `dc`.

    :param answers: the answers of each node.
    """
    kind = type("Wire", (Wire,), {"answers": staticmethod(answers)})
    raw = {
        "keyspace": "ks",
        "table": "t",
        "cassandra.contactPoints": "10.0.0.1",
        "cassandra.localDatacenter": "dc",
    }
    cluster = Cluster(
        ["10.0.0.1"],
        protocol_version=version,
        connection_class=kind,
        execution_profiles=_profiles(parse(raw, CassandraOptions)),
    )
    hosts = []
    for number in range(1, count + 1):
        host = Host(DefaultEndPoint(f"10.0.0.{number}"), SimpleConvictionPolicy)
        host.set_location_info("dc", "rack")
        host.set_up()
        hosts.append(cluster.metadata.add_or_return_host(host)[0])
    cluster.profile_manager.populate(cluster, hosts)
    session = Session(cluster, hosts)
    wait([pool for pool in session._initial_connect_futures if pool])
    try:
        yield Nodes(session, hosts)
    finally:
        cluster.is_shutdown = True
        cluster.scheduler.shutdown()  # reconnects to nodes that were lost
        session.shutdown()
        cluster.executor.shutdown(wait=True)


_ID = bytes(16)
_COLUMNS = [ColumnMetadata("ks", "t", "v", BytesType), ColumnMetadata("ks", "t", "us", LongType)]
_PREPARED = PreparedStatement(_COLUMNS, _ID, [0], "", "ks", 5, [], None)
_PLAN = plan_of(("v", "partition", "blob", pa.binary()))
STATEMENTS = OwnStatements({_ID: Statement(_PREPARED, _PLAN, b"", False)}, "ks")
SENT_ONCE = STATEMENTS._replace(sent_once=True)
"""The statements of rows that must not be sent twice with the same timestamp."""
_numbers = itertools.count()


def request(
    node: Any = None, size: int = 8, *, rows: int = 1, statements: OwnStatements = STATEMENTS
) -> EncodedBatch:
    """Return a request of rows with new values and timestamps.

    :param size: bytes of a value, at least 8.
    """
    data = b"".join(
        statement_head(_ID, 2)
        + struct.pack(">i", size)
        + struct.pack(">q", number).ljust(size, b".")
        + struct.pack(">iq", 8, number)
        for number in itertools.islice(_numbers, rows)
    )
    return EncodedBatch(rows, data, statements, node)


def values_of(sent: Frame) -> list[bytes]:
    """Return the first value of each row of a request. All values have one length."""
    (size,) = struct.unpack_from(">i", sent.body, 3 + 3 + len(_ID) + 2)
    row = 3 + len(_ID) + 2 + 4 + size + 12
    (count,) = struct.unpack_from(">H", sent.body, 1)
    begins = [3 + 3 + len(_ID) + 2 + 4 + number * row for number in range(count)]
    return [sent.body[begin : begin + size] for begin in begins]


def value_of(sent: Frame | EncodedBatch) -> bytes:
    """Return the first value of a request."""
    data = sent.body[3:] if isinstance(sent, Frame) else sent.data
    begin = 3 + len(_ID) + 2
    (length,) = struct.unpack_from(">i", data, begin)
    return data[begin + 4 :][:length]
