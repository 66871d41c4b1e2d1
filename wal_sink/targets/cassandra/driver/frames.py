"""Sends batches of rows that are encoded already: the hook into the driver, and the canary that tests it.

The driver encodes a BATCH message row by row, from one Python tuple per row. `encode` encodes the rows of a
whole slice at once, and a message takes its part of those bytes. All else stays the driver's: it encodes
what comes before and after the rows, picks the replica, compresses, keeps the pools, the stream ids and the
timers, and prepares again what a server has forgotten.

`Session.client_protocol_handler` and its `encode_message` are the driver's API; what a BATCH message
holds, and that a `BatchStatement` hands its list of statements to it, is not. So `canary` encodes known
batches both ways, at every connect; where they differ, the writer uses the driver's own batches.

The frames of many requests lie in one buffer, in which a request is found again. What the driver writes
around the rows of a batch is the same for all batches of a keyspace, so it is taken once from a frame that
the driver has made. A group of requests is then joined from its parts by one call, which is the only copy of
the rows on their way into the driver's segment. Those frames are all that is kept while the requests are in
flight: the rows are part of a slice, of which one late answer would keep megabytes in memory.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import cassandra
import msgspec
from cassandra import ConsistencyLevel, ProtocolVersion
from cassandra.cluster import EXEC_PROFILE_DEFAULT
from cassandra.protocol import ProtocolHandler
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType

from wal_sink.log_context import line_logger

log = line_logger(__name__)

MAX_ROWS = 0xFFFF
"""A batch's number of statements is a [short] (native protocol, section 4.1.7)."""

_SHORT = struct.Struct(">H")
_LENGTH = struct.Struct(">i")
_PREPARED = b"\x01"
_WITHOUT_BYTES = {-1: None, -2: UNSET_VALUE}
"""Values by their lengths (native protocol, section 3)."""
BEFORE_ROWS = 3
"""Bytes of a BATCH body before its statements: one for its type, two for their number."""


class EncodedRows(msgspec.Struct, frozen=True, gc=False):
    """Statements of a batch, encoded one after the other (native protocol, section 4.1.7)."""

    number: int
    """At most `MAX_ROWS`."""
    data: bytes | memoryview


class EncodedBatch(msgspec.Struct, gc=False):
    """An unlogged batch of rows that are encoded already, idempotent.

    It is made for each request, and nearly always pipelined. So it is no statement of the driver, which takes
    longer to make than the whole request to send; `statement` returns that.
    """

    rows: EncodedRows
    keyspace: str
    """Of the table."""
    routing_key: bytes
    """Of the first row; the driver finds the replicas by keyspace and routing key."""
    node: Any = None
    """The driver's host that is the first replica of each row; None: any will do, or it is not known."""
    bind: Callable[[EncodedBatch], Any] | None = None
    """Makes a statement of the driver's public classes. None: the bytes are sent as they are."""

    def __len__(self) -> int:
        return self.rows.number

    def detached(self) -> EncodedBatch:
        """Return the request with bytes of its own, which keep no slice in memory."""
        rows = EncodedRows(self.rows.number, bytes(self.rows.data))
        return msgspec.structs.replace(self, rows=rows)

    def statement(self) -> Any:
        """Return what the driver sends."""
        return EncodedStatement(self) if self.bind is None else self.bind(self)

    def halves(self) -> list[EncodedBatch]:
        """Return two batches with half of the rows each; none for a single row.

        Both keep the routing key: all rows of a batch have the same first replica.
        """
        number, data = self.rows.number, bytes(self.rows.data)
        middle = number // 2
        if not middle:
            return []
        cut = 0
        for _ in range(middle):
            _, _, cut = _statement(data, cut)
        halves = EncodedRows(middle, data[:cut]), EncodedRows(number - middle, data[cut:])
        return [msgspec.structs.replace(self, rows=half, node=None) for half in halves]

    def statements(self) -> Iterator[tuple[bytes, list[Any]]]:
        """Yield for each row the id of its statement, and its values: bytes, None, or `UNSET_VALUE`."""
        data, at = bytes(self.rows.data), 0
        while at < len(data):
            query_id, values, at = _statement(data, at)
            yield query_id, values


class EncodedStatement(BatchStatement):  # type: ignore[misc]  # the driver has no types
    """An `EncodedBatch` as the driver takes it."""

    def __init__(self, request: EncodedBatch) -> None:
        super().__init__(BatchType.UNLOGGED)
        if len(request) > MAX_ROWS:
            raise ValueError(f"A batch holds {MAX_ROWS} statements at most, not {len(request)}")
        self._statements_and_parameters = request.rows
        self.is_idempotent = True
        self.keyspace = request.keyspace
        self.routing_key = request.routing_key

    def __len__(self) -> int:
        return int(self._statements_and_parameters.number)


def of_driver(request: Any) -> Any:
    """Return a request as the driver takes it, whatever it is made of."""
    return request.statement() if isinstance(request, EncodedBatch) else request


def _statement(data: bytes, at: int) -> tuple[bytes, list[Any], int]:
    """Return the id and the values of the statement that begins at `at`, and where it ends."""
    at += len(_PREPARED)
    (length,) = _SHORT.unpack_from(data, at)
    at += _SHORT.size
    query_id = data[at : at + length]
    (count,) = _SHORT.unpack_from(data, at + length)
    at += length + _SHORT.size
    values: list[Any] = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        values.append(data[at : at + length] if length >= 0 else _WITHOUT_BYTES[length])
        at += max(length, 0)
    return query_id, values, at


class _EncodedMessage:
    """A BATCH message: the driver encodes it without statements, and the encoded rows are put in."""

    def __init__(self, message: Any) -> None:
        self.opcode = message.opcode
        self.tracing = message.tracing
        self.custom_payload = message.custom_payload
        self._message = message

    def send_body(self, f: Any, protocol_version: int) -> None:
        """Write the body; called by the driver."""
        message, around = self._message, io.BytesIO()
        # The message is not copied: that would cost a seventh of a small request.
        rows, message.queries = message.queries, ()
        try:
            message.send_body(around, protocol_version)
        finally:
            message.queries = rows  # the driver may encode it again, for another replica
        written = around.getvalue()
        f.write(written[:1] + _SHORT.pack(rows.number))
        f.write(rows.data)
        f.write(written[BEFORE_ROWS:])


class EncodedRowsHandler(ProtocolHandler):  # type: ignore[misc]  # the driver has no types
    """The driver's protocol handler, with batches of encoded rows."""

    @classmethod
    def encode_message(
        cls,
        msg: Any,
        stream_id: int,
        protocol_version: int,
        compressor: Any,
        allow_beta_protocol_version: bool,
    ) -> bytes:
        """Encode a request into a frame; called by the driver."""
        if isinstance(getattr(msg, "queries", None), EncodedRows):
            msg = _EncodedMessage(msg)
        frame: bytes = super().encode_message(
            msg, stream_id, protocol_version, compressor, allow_beta_protocol_version
        )
        return frame


def framed(
    cluster: Any, sent: Any, stream: int, compressor: Any = None, handler: Any = EncodedRowsHandler
) -> bytes:
    """Return the frame of a message of the driver.

    :param cluster: the driver's.
    """
    version, beta = cluster.protocol_version, cluster.allow_beta_protocol_version
    frame: bytes = handler.encode_message(sent, stream, version, compressor, beta)
    return frame


def message(session: Any, request: Any, profile: Any) -> Any:
    """Return the driver's message of a request; a future without timeout starts nothing."""
    statement = of_driver(request)
    future = session._create_response_future(
        statement, None, False, None, timeout=None, execution_profile=profile
    )
    return future.message


def statement_head(query_id: bytes, values: int) -> bytes:
    """Return what stands before the values of a prepared statement in a batch.

    Kind 1, the id as [short bytes], the number of values as a [short] (native protocol, 4.1.7).
    """
    return _PREPARED + _SHORT.pack(len(query_id)) + query_id + _SHORT.pack(values)


def hook(session: Any) -> bool:
    """Let a session of the driver send batches of encoded rows, if `canary` finds no difference.

    Otherwise it logs one warning, and the session stays as it is.

    :returns: whether `EncodedBatch` can be sent.
    """
    try:
        why = canary(session)
    except Exception as error:  # noqa: BLE001 -- a name is missing, or means something else
        why = f"{type(error).__name__}: {error}"
    if why:
        log.warning(
            "cassandra-driver %s with native protocol %d encodes batches in another way than the"
            " tested versions (%s). Rows are written by its public classes, which takes several"
            " times the CPU.",
            cassandra.__version__,
            session.cluster.protocol_version,
            why,
        )
        return False
    session.client_protocol_handler = EncodedRowsHandler
    return True


_KNOWN = ((b"key", b"", None), (b"other", UNSET_VALUE, b"\xff" * 300))
_ID = bytes(range(16))
_TIMESTAMP = 1_700_000_000_000_000


def canary(session: Any) -> str:
    """Encode known statements by the driver's own batch and by ours; return what differs, '' for nothing.

    Runs everything between `execute_async` and the socket, without and with a serial consistency level.

    :raises Exception: of any kind, when the driver is built otherwise than this module assumes.
    """
    theirs = BatchStatement(BatchType.UNLOGGED)
    for values in _KNOWN:
        theirs._add_statement_and_params(True, _ID, values)
    theirs.keyspace, theirs.routing_key = "ks", b"key"
    head = statement_head(_ID, len(_KNOWN[0]))
    data = b"".join(head + b"".join(map(_value, values)) for values in _KNOWN)
    ours = EncodedBatch(EncodedRows(len(_KNOWN), data), "ks", b"key").statement()
    for serial in (None, ConsistencyLevel.LOCAL_SERIAL):
        theirs.serial_consistency_level = ours.serial_consistency_level = serial
        expected = _frame(session, theirs, ProtocolHandler)
        found = _frame(session, ours, EncodedRowsHandler)
        if found != expected:
            return f"{found!r} instead of {expected!r}"
    return ""


def _frame(session: Any, statement: Any, handler: Any) -> bytes:
    """Return the frame that would be sent."""
    sent = message(session, statement, EXEC_PROFILE_DEFAULT)
    sent.timestamp = _TIMESTAMP  # one for both
    return framed(session.cluster, sent, 1, handler=handler)


def _value(value: Any) -> bytes:
    if value is None:
        return _LENGTH.pack(-1)
    if value is UNSET_VALUE:
        return _LENGTH.pack(-2)
    return _LENGTH.pack(len(value)) + bytes(value)


_HEADER = struct.Struct(">BBhBi")
"""Version, flags, stream, opcode, length of the body (native protocol, section 2)."""
_BEGIN = struct.Struct(">BBhBicH")
"""The same, and how the body of a BATCH begins: its type, and the number of its statements."""
_COMPRESSED = 0x01
_BATCH = 0x0D

Compress = Callable[[bytes], bytes]


class Envelope(NamedTuple):
    """What the driver writes around the rows of a batch: the same for all batches of a keyspace."""

    version: int
    flags: int
    compresses: bool
    """Whether each frame is compressed by itself: later versions of the protocol compress segments."""
    kind: bytes
    after: bytes
    """The consistency levels, the keyspace, and a timestamp that no row takes: each has its own."""

    def frames(self, requests: Sequence[EncodedBatch], streams: Sequence[int]) -> Frames:
        """Return the frames of requests, of which there is at least one, in their order."""
        version, flags, _, kind, after = self
        begin, beside = _BEGIN.pack, BEFORE_ROWS + len(after)
        pieces: list[bytes | memoryview] = []
        for request, stream in zip(requests, streams, strict=True):
            rows = request.rows
            data = rows.data
            size = beside + len(data)
            pieces += (begin(version, flags, stream, _BATCH, size, kind, rows.number), data, after)
        keys = [request.routing_key for request in requests]
        return Frames(self, b"".join(pieces), keys, requests[0].keyspace, requests[0].node)


class Frames:
    """The frames of requests for one node, one after the other.

    :param keys: the routing key of each.
    """

    def __init__(
        self, around: Envelope, data: bytes, keys: Sequence[bytes], keyspace: str, node: Any
    ) -> None:
        self._around = around
        self._data = data
        self._keys = keys
        self._keyspace = keyspace
        self._node = node

    def on_wire(self, compress: Compress | None) -> bytes:
        """Return what is pushed.

        :param compress: of the connection; None: it compresses nothing.
        """
        if compress is None or not self._around.compresses:
            return self._data
        return b"".join(_compressed(frame, compress) for frame in self._each())

    def request(self, place: int) -> EncodedBatch:
        """Return a request, with bytes of its own."""
        for number, frame in enumerate(self._each()):
            if number == place:
                rows = frame[_BEGIN.size : len(frame) - len(self._around.after)]
                *_, count = _BEGIN.unpack_from(frame)
                own = EncodedRows(count, rows)
                return EncodedBatch(own, self._keyspace, self._keys[place], self._node)
        raise IndexError(place)

    def _each(self) -> Iterator[bytes]:
        at = 0
        while at < len(self._data):
            *_, length = _HEADER.unpack_from(self._data, at)
            end = at + _HEADER.size + length
            yield self._data[at:end]
            at = end


def _compressed(frame: bytes, compress: Compress) -> bytes:
    version, flags, stream, opcode, _ = _HEADER.unpack_from(frame)
    body = compress(frame[_HEADER.size :])
    return _HEADER.pack(version, flags | _COMPRESSED, stream, opcode, len(body)) + body


def envelope(sent: Any, rows: EncodedRows, cluster: Any) -> Envelope:
    """Return what is around the rows of a message that `frames.message` has returned.

    :param rows: of the request that the message is of.
    :param cluster: the driver's.
    """
    version = cluster.protocol_version
    frame = framed(cluster, sent, 0)
    _, flags, _, _, _ = _HEADER.unpack_from(frame)
    body = frame[_HEADER.size :]
    return Envelope(
        version,
        flags,
        not ProtocolVersion.has_checksumming_support(version),
        body[:1],
        body[BEFORE_ROWS + len(rows.data) :],
    )
