"""Pipelined requests over the driver's connections: each ends once, and no stream is lost or used twice."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut
from cassandra.connection import ConnectionShutdown

from tests.cassandra.cql_nodes import (
    BATCH,
    INVALID,
    NOTHING,
    OPTIONS,
    OVERLOADED,
    SENT_ONCE,
    STATEMENTS,
    UNPREPARED,
    Frame,
    Nodes,
    error,
    nodes,
    request,
    value_of,
    well,
)
from tests.support.cql_driver import OwnStatements
from tests.support.waiting import eventually
from wal_sink.errors import TargetUnavailable
from wal_sink.targets.cassandra.driver.concurrency import Concurrency
from wal_sink.targets.cassandra.driver.errors import was_not_sent
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.internals import OverloadedErrorMessage
from wal_sink.targets.cassandra.driver.requests_in_flight import (
    MOST_REQUESTS,
    Group,
    RequestPipeline,
    SentGroup,
    grouped,
)
from wal_sink.targets.cassandra.sender import Sender
from wal_sink.telemetry import FlushMetrics


def silent(sent: Frame) -> Frame | None:
    """Answer only the driver's heartbeats."""
    return well(sent) if sent.opcode == OPTIONS else None


def highest(most: int = 64) -> Concurrency:
    """Return a limit at its maximum."""
    concurrency = Concurrency(most)
    concurrency.limit = most
    return concurrency


def pipeline_to(cluster: Nodes, timeout_s: float = 5) -> RequestPipeline:
    """Return a pipeline with its highest limit."""
    return RequestPipeline(cluster.connection, highest(), timeout_s, FlushMetrics())


def start(pipeline: RequestPipeline, requests: Sequence[EncodedBatch]) -> bool:
    """Send requests as one group of any size."""
    group = Group()
    group.requests = list(requests)
    return pipeline.send(group)


def sent(pipeline: RequestPipeline, requests: Sequence[EncodedBatch]) -> SentGroup:
    """Send a group, and return it after it has ended."""
    assert start(pipeline, requests)
    ended = pipeline.await_group()
    assert not has_ended(pipeline)
    assert len(pipeline) == 0
    return ended


def has_ended(pipeline: RequestPipeline) -> bool:
    return not pipeline._ended.empty()


def values(requests: Iterable[Any]) -> list[bytes]:
    return sorted(map(value_of, requests))


# --- one group ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_group_of_requests_needs_one_push_and_ends_once(version: int) -> None:
    with nodes(1, version) as cluster:
        pipeline = pipeline_to(cluster)
        requests = [request() for _ in range(20)]
        ended = sent(pipeline, requests)
        assert (ended.acknowledged, ended.failed) == (20, [])
        assert [value_of(pushed) for pushed in cluster.wire().pushes[-1]] == [
            value_of(r) for r in requests
        ]
        assert cluster.in_use() == NOTHING


def test_answers_in_any_order_belong_to_their_requests() -> None:

    def refuses(frame: Frame) -> Frame | None:
        return error(frame, INVALID) if frame.stream % 3 == 0 else silent(frame)

    with nodes() as cluster:
        pipeline = pipeline_to(cluster)
        cluster.wire().answer = refuses
        requests = [request() for _ in range(9)]
        start(pipeline, requests)
        frames = cluster.wire().requests
        assert not has_ended(pipeline)
        cluster.wire().reply(
            *[well(answered) for answered in reversed(frames) if answered.stream % 3]
        )
        ended = pipeline.await_group()
        assert ended.acknowledged == 6
        assert [type(failed.error) for failed in ended.failed] == [InvalidRequest] * 3
        refused = [answered for answered in frames if answered.stream % 3 == 0]
        assert values(failed.request for failed in ended.failed) == values(refused)
        assert cluster.in_use() == NOTHING


def test_late_answer_only_frees_its_stream() -> None:
    """Until it comes, no other request may use its stream: the request would receive the late answer."""
    with nodes() as cluster:
        pipeline = pipeline_to(cluster, timeout_s=0.5)
        cluster.wire().answer = silent
        requests = [request() for _ in range(3)]
        start(pipeline, requests)
        first, *late = cluster.wire().requests
        cluster.wire().reply(well(first))
        ended = pipeline.await_group()  # returns when the requests are late
        assert ended.acknowledged == 1
        assert [type(failed.error) for failed in ended.failed] == [OperationTimedOut] * 2
        streams = {frame.stream for frame in late}
        assert cluster.in_use() == (2, streams, streams)
        cluster.wire().answer = well
        # There are more requests than free streams, so each free stream is used.
        for _ in range(400):
            again = sent(pipeline, [request()])
            assert again.acknowledged == 1
            assert cluster.wire().requests[-1].stream not in streams
        cluster.wire().reply(*map(well, late))
        assert cluster.in_use() == NOTHING
        assert not has_ended(pipeline)


@pytest.mark.parametrize("number", [1, 5, 150])
def test_lost_connection_ends_unanswered_requests(number: int) -> None:
    """The driver ends many requests in another thread, and marks the node as down."""
    with nodes() as cluster:
        pipeline = pipeline_to(cluster)
        wire = cluster.wire()
        wire.answer = silent
        requests = [request() for _ in range(number)]
        start(pipeline, requests)
        if number > 1:
            wire.reply(well(wire.requests[0]))
        threads = [threading.Thread(target=wire.defunct, args=(OSError("cut"),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ended = pipeline.await_group()
        assert ended.acknowledged == (number > 1)
        assert len(ended.failed) == number - ended.acknowledged
        assert {type(failed.error) for failed in ended.failed} == {ConnectionShutdown}
        assert eventually(lambda: not cluster.hosts[0].is_up)
        assert not start(pipeline, [request()])
        assert not has_ended(pipeline)


def test_group_sent_into_a_closing_connection_ends_once() -> None:
    """The driver calls the callbacks, and then also raises an error."""
    with nodes() as cluster:
        pipeline = pipeline_to(cluster)
        wire = cluster.wire()

        def closes(_: bytes) -> None:
            wire.defunct(OSError("cut"))
            raise ConnectionShutdown("closed")

        wire.push = closes  # type: ignore[assignment,method-assign]
        ended = sent(pipeline, [request() for _ in range(4)])
        assert len(ended.failed) == 4


def test_request_refused_by_full_socket_frees_its_stream() -> None:
    """The driver refuses the push. The driver's own requests lose a stream then."""
    with nodes() as cluster:
        pipeline = pipeline_to(cluster)
        cluster.wire()._socket_writable = False
        assert start(pipeline, [request()])
        assert not pipeline.has_room(1)
        assert was_not_sent(pipeline.await_group().failed[0].error)
        for _ in range(3):
            ended = sent(pipeline, [request() for _ in range(200)])
            assert len(ended.failed) == 200
            assert all(was_not_sent(failed.error) for failed in ended.failed)
        assert cluster.in_use() == NOTHING
        cluster.wire()._socket_writable = True
        ended = sent(pipeline, [request()])
        assert ended.acknowledged == 1


def test_answer_and_lost_connection_end_a_request_once() -> None:
    """Answers and the lost connection come from different threads."""
    for _ in range(20):
        with nodes() as cluster:
            pipeline = pipeline_to(cluster)
            wire = cluster.wire()
            wire.answer = silent
            start(pipeline, [request() for _ in range(120)])
            frames = wire.requests
            cut = threading.Thread(target=wire.defunct, args=(OSError("cut"),))
            cut.start()
            for answered in frames:
                wire.reply(well(answered))
            cut.join()
            until = time.monotonic() + 0.2
            while not has_ended(pipeline) and time.monotonic() < until:
                time.sleep(0.001)
            # The driver may lose some in this race: it ends them from a copy.
            next(iter(pipeline._in_flight)).expire(0)
            ended = pipeline.await_group()
            assert not has_ended(pipeline)
            assert ended.acknowledged + len(ended.failed) == 120


# --- which node --------------------------------------------------------------------------------


def test_requests_without_a_replica_go_to_nodes_in_turn() -> None:
    """Requests for a node that is lost go to the others."""
    with nodes(3) as cluster:
        pipeline = pipeline_to(cluster)
        for number, host in enumerate(cluster.hosts):
            requests = [request(host) for _ in range(4)]
            sent(pipeline, requests)
            assert values(cluster.wire(number).requests) == values(requests)
        for _ in range(6):
            sent(pipeline, [request()])
        assert [len(cluster.wire(number).requests) for number in range(3)] == [6, 6, 6]
        cluster.session.remove_pool(cluster.hosts[1]).result(5)
        for node in (None, cluster.hosts[1]) * 2:
            sent(pipeline, [request(node)])
        assert [len(cluster.wire(number).requests) for number in (0, 2)] == [8, 8]


def test_connection_without_free_streams_takes_no_group() -> None:
    """The driver replaces a connection with too many late streams."""
    with nodes() as cluster:
        pipeline = pipeline_to(cluster)
        wire = cluster.wire()
        wire.in_flight = wire.max_request_id - 1
        assert not start(pipeline, [request(), request()])
        wire.in_flight = 0
        wire.orphaned_threshold_reached = True
        assert not start(pipeline, [request()])
        assert cluster.in_use() == NOTHING


# --- the sender over it ------------------------------------------------------------------------


class Counts(FlushMetrics):
    """Counts the requests that are sent again."""

    def __init__(self) -> None:
        self.retries = 0

    def retried(self, kind: str) -> None:
        self.retries += 1


def sender_to(
    cluster: Nodes, timeout_s: float = 5, patience_s: float = 10, most: int = 64
) -> tuple[Sender, Counts]:
    """Return a sender with the highest limit, and its metrics."""
    metrics, limit = Counts(), highest(most)
    sender = Sender(cluster.connection, limit, metrics, timeout_s=timeout_s, patience_s=patience_s)
    return sender, metrics


class FailsOnce:
    """A node that fails at every fifth request, the first time."""

    def __init__(self, code: int, more: bytes = b"") -> None:
        self.seen: set[bytes] = set()
        self.taken: list[bytes] = []
        self._code, self._more = code, more

    def __call__(self, frame: Frame) -> Frame:
        if frame.opcode == BATCH:
            value = value_of(frame)
            if int.from_bytes(value[:8], "big") % 5 == 0 and value not in self.seen:
                self.seen.add(value)
                return error(frame, self._code, self._more)
            self.taken.append(value)
        return well(frame)


FORGOTTEN = UNPREPARED, struct.pack(">H", 16) + bytes(16)


@pytest.mark.parametrize(
    ("failure", "statements", "retries"),
    [
        ((OVERLOADED,), STATEMENTS, True),
        (FORGOTTEN, STATEMENTS, False),
        (FORGOTTEN, SENT_ONCE, False),
    ],
    ids=["overloaded", "unprepared", "unprepared, to send once"],
)
def test_request_that_had_no_effect_is_sent_again(
    failure: Any, statements: OwnStatements, *, retries: bool
) -> None:
    """The node was overloaded, or had forgotten the statement. Only an overload needs a pause."""
    node = FailsOnce(*failure)
    with nodes(answers=node) as cluster:
        sender, metrics = sender_to(cluster)
        requests = [request(statements=statements) for _ in range(50)]
        sender.send(requests)
        sender.drain()
        assert sorted(node.taken) == values(requests)
        assert len(node.seen) == 10
        assert (metrics.retries > 0) is retries
        assert cluster.in_use() == NOTHING


def test_overload_beyond_patience_is_an_outage() -> None:
    with nodes(
        answers=lambda frame: well(frame) if frame.opcode == OPTIONS else error(frame, OVERLOADED)
    ) as cluster:
        sender, metrics = sender_to(cluster, patience_s=0.5)
        sender.send([request() for _ in range(3)])
        with pytest.raises(TargetUnavailable, match="acknowledge 3 requests") as raised:
            sender.drain()
        assert isinstance(raised.value.__cause__, OverloadedErrorMessage)
        assert metrics.in_flight == 0


def test_unanswered_requests_are_sent_again() -> None:
    """Requests are created only as fast as they can be sent. Unanswered requests are sent again."""
    with nodes() as cluster:
        sender, _ = sender_to(cluster, timeout_s=0.2, most=8)
        cluster.wire().answer = silent
        made: list[Any] = []

        def feed() -> Any:
            for _ in range(100):
                made.append(request())
                yield made[-1]

        def speaks() -> None:
            assert len(made) <= 8 + MOST_REQUESTS
            cluster.wire().answer = well

        threading.Timer(0.1, speaks).start()
        sender.send(feed())
        sender.drain()
        taken = [value_of(frame) for frame in cluster.wire().requests]
        assert set(taken) == set(values(made))
        assert len(taken) > 100  # the node got unanswered requests twice
        in_flight, _, late = cluster.in_use()
        assert in_flight == len(late) == len(taken) - 100


def test_fatal_error_is_raised_and_ends_requests_in_flight() -> None:
    """A later call raises it."""

    def refuses(frame: Frame) -> Frame:
        return error(frame, 0x2000) if frame.opcode == BATCH else well(frame)

    with nodes() as cluster:
        sender, _ = sender_to(cluster)
        cluster.wire().answer = refuses
        sender.send([request() for _ in range(10)])
        with pytest.raises(Exception, match="Syntax error"):
            sender.send([request()])
        cluster.wire().answer = well
        sender.send([request()])
        sender.drain()
        assert cluster.in_use() == NOTHING


@pytest.mark.parametrize(("answer", "failed"), [(FailsOnce(OVERLOADED), 2), (silent, 10)])
def test_failed_request_of_sent_once_rows_is_not_retried(answer: Any, failed: int) -> None:
    """A failed request may have been carried out (rule `repeatable`)."""
    with nodes(answers=answer) as cluster:
        sender, metrics = sender_to(cluster, timeout_s=0.3)
        requests = [request(statements=SENT_ONCE) for _ in range(10)]
        sender.send(requests)
        with pytest.raises(TargetUnavailable, match=f"did not acknowledge {failed} requests: "):
            sender.drain()
        assert values(cluster.wire().requests) == values(requests)
        assert metrics.retries == 0


# --- groups ------------------------------------------------------------------------------------


def test_group_size_follows_the_limit_and_the_segment() -> None:
    """A small request takes an eighth of a place, a large one a whole place."""
    by_size = Concurrency(64, by_size=True)
    small = [request(size=100) for _ in range(100)]
    by_size.limit = 64
    assert [len(group.requests) for group in grouped(small, by_size)] == [32, 32, 32, 4]
    by_size.limit = 4
    assert [group.places for group in grouped(small, by_size)] == [2] * 6 + [0.5]
    large = [request(size=96 * 1024) for _ in range(5)]
    assert [(len(group.requests), group.places) for group in grouped(large, by_size)] == [
        (1, 1)
    ] * 5
    fixed = Concurrency(4)
    assert max(len(group.requests) for group in grouped(small, fixed)) == 2
    by_size.limit = 64
    middle = [request(size=30_000) for _ in range(9)]
    assert next(len(group.requests) for group in grouped(middle, by_size)) <= 4


def test_requests_of_a_node_keep_their_order() -> None:
    requests = [request(f"node {i % 3}") for i in range(50)]
    by_node: dict[Any, list[bytes]] = {}
    for group in grouped(requests, Concurrency()):
        (node,) = {batch.node for batch in group.requests}
        by_node.setdefault(node, []).extend(map(value_of, group.requests))
    assert {node: sorted(values) for node, values in by_node.items()} == by_node
    assert sum(map(len, by_node.values())) == 50
