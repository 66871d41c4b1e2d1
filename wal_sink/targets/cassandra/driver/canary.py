"""The canary of light requests: two requests by one push over each connection, before rows go that way.

What `Streams` and `Envelope` rely on is no promise of the driver. So two OPTIONS, which every node answers,
go by the same push, streams and decoder as rows will: each answer has to come once, to its own stream, and
afterwards the driver's counters and stream ids have to be what they were. And a batch is framed both ways.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from wal_sink.targets.cassandra.driver.envelope import envelope
from wal_sink.targets.cassandra.driver.frames import (
    EncodedBatch,
    EncodedRows,
    EncodedRowsHandler,
    message,
)
from wal_sink.targets.cassandra.driver.internals import (
    OptionsMessage,
    Streams,
    SupportedMessage,
    borrow,
)

_PUSHED = 2
_LOOK_EVERY_S = 0.001
_STREAM = 0x1234
_KEYSPACE = "ks"
_ROWS = EncodedRows(1, bytes(range(256)) * 4)
"""Stands for rows: nothing reads them."""


class NoAnswer(Exception):
    """The connection was lost, or has no stream, or the node is late: nothing can be told."""


def canary(session: Any, pool: Any, profile: str, timeout_s: float) -> str:
    """Return what is not as it should be, '' for nothing.

    :param pool: of the driver, whose connection is tested.
    :param profile: of rows.
    :raises NoAnswer: there is nothing to judge by.
    :raises Exception: of any kind, when the driver is built otherwise than these modules assume.
    """
    streams = borrow(pool, _PUSHED)
    if streams is None:
        raise NoAnswer("the connection has no free streams")
    connection = streams.connection
    beyond = streams.beyond() - _PUSHED
    heard: list[Any] = []
    all_heard = threading.Event()

    def answered(response: Any) -> None:
        heard.append(response)
        if len(heard) >= _PUSHED or _is_of_the_connection(response):
            all_heard.set()

    streams.push(b"".join(_options(session, each) for each in streams.ids), answered)
    if not all_heard.wait(timeout_s):
        streams.returned(streams.abandoned(streams.ids))
        raise NoAnswer(f"no answer within {timeout_s:g} s")
    streams.returned(0)
    if lost := [each for each in heard if _is_of_the_connection(each)]:
        raise NoAnswer(repr(lost[0]))
    if any(not isinstance(each, SupportedMessage) for each in heard):
        return f"OPTIONS were answered by {heard!r}"
    if Counter(each.stream_id for each in heard) != Counter(streams.ids):
        return f"answers came to streams {[each.stream_id for each in heard]}, not to {streams.ids}"
    return _left_behind(streams, beyond, timeout_s) or _framed(session, profile, connection)


def _is_of_the_connection(response: Any) -> bool:
    """Whether it is no answer, but an exception that ends all requests of a connection."""
    return isinstance(response, Exception) and not hasattr(response, "stream_id")


def _left_behind(streams: Streams, before: int, timeout_s: float) -> str:
    """Return what of the driver's counters is not as it was; it frees a stream after the answer is heard.

    Futures of the same connection may end meanwhile, and be counted a moment later.
    """
    until = time.monotonic() + timeout_s
    while True:
        lost, found = streams.kept(), streams.beyond()
        if not lost and min(before, 0) <= found <= max(before, 0):
            return ""
        if time.monotonic() > until:
            return (
                f"streams {lost} are not free again; {found} are in flight beyond those that are awaited, and"
                f" were {before} before"
            )
        time.sleep(_LOOK_EVERY_S)


def _options(session: Any, stream: int) -> bytes:
    cluster = session.cluster
    return bytes(
        EncodedRowsHandler.encode_message(
            OptionsMessage(),
            stream,
            cluster.protocol_version,
            None,
            cluster.allow_beta_protocol_version,
        )
    )


def _framed(session: Any, profile: str, connection: Any) -> str:
    """Return how a batch is framed otherwise than by the driver."""
    cluster, request = session.cluster, EncodedBatch(_ROWS, _KEYSPACE, b"key")
    sent = message(session, request, profile)
    around = envelope(sent, _ROWS, cluster)
    expected = EncodedRowsHandler.encode_message(
        sent,
        _STREAM,
        cluster.protocol_version,
        connection.compressor,
        cluster.allow_beta_protocol_version,
    )
    found = around.frames([request], [_STREAM]).on_wire(connection.compressor)
    return "" if found == expected else f"{found!r} instead of {expected!r}"
