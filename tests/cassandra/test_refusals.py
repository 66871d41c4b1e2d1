"""The rows of a request that the server refuses, and the rows beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from cassandra import InvalidRequest, OperationTimedOut, WriteFailure
from cassandra.cluster import NoHostAvailable

from tests.cassandra.cql_nodes import (
    BATCH,
    INVALID,
    OVERLOADED,
    SENT_ONCE,
    Frame,
    Nodes,
    error,
    nodes,
    request,
    values_of,
    well,
)
from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.targets.cassandra.driver.concurrency import Concurrency
from wal_sink.targets.cassandra.driver.errors import is_refused
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.internals import ServerError
from wal_sink.targets.cassandra.sender import Sender
from wal_sink.telemetry import FlushMetrics

FULL_DISK = "Guardrail violated: Write request failed because disk usage exceeds failure threshold"


REFUSAL = InvalidRequest("x")


@pytest.mark.parametrize("error", [REFUSAL, NoHostAvailable("none", {"a": REFUSAL})], ids=repr)
def test_invalid_request_is_a_refusal(error: Exception) -> None:
    assert is_refused(error)


@pytest.mark.parametrize(
    "failure",
    [
        WriteFailure("no", error_code_map={"10.0.0.1": 0}),
        WriteFailure("before version 5"),
        ServerError(0x0000, "java.lang.IllegalArgumentException", None),
        OperationTimedOut(),
        NoHostAvailable("none", {}),
        NoHostAvailable("none", {"a": REFUSAL, "b": OperationTimedOut()}),
        InvalidRequest("unconfigured table t"),
        InvalidRequest("Keyspace 'ks' doesn't exist"),
        InvalidRequest('Error from server: code=2200 message="table t does not exist"'),
        InvalidRequest("Undefined column name v in table ks.t"),
        InvalidRequest(FULL_DISK),
    ],
    ids=repr,
)
def test_failure_of_a_full_node_is_not_a_refusal(failure: Exception) -> None:
    assert not is_refused(failure)


class Node:
    """A node that refuses some rows, and records its requests.

    :param refuses: returns the answer to a request; None to write its rows.
    """

    def __init__(self, refuses: Callable[[Node, list[int], Frame], Frame | None]) -> None:
        self.asked: list[tuple[list[int], bool]] = []
        """The rows of each request, and True if they were written."""
        self._refuses = refuses

    def __call__(self, frame: Frame) -> Frame:
        if frame.opcode != BATCH:
            return well(frame)
        rows = [int.from_bytes(value[:8], "big") for value in values_of(frame)]
        answer = self._refuses(self, rows, frame)
        self.asked.append((rows, answer is None))
        return answer or well(frame)

    @property
    def taken(self) -> list[int]:
        """The rows that were written, each as often as it was written."""
        return [row for rows, is_taken in self.asked if is_taken for row in rows]


def numbers(*batches: EncodedBatch) -> list[int]:
    """Return the rows of requests as `Node` numbers them."""
    return [int.from_bytes(values[0][:8], "big") for batch in batches for _, values in batch.rows()]


@pytest.mark.parametrize("count", [1, 2, 7, 600])
def test_halves_of_a_request_have_every_row(count: int) -> None:
    batch = request(rows=count)
    halves = batch.halves()
    assert [len(half) for half in halves] == [count // 2, count - count // 2][: count // 2 * 2]
    assert numbers(*halves or [batch]) == numbers(batch)
    assert all(half.statements == batch.statements for half in halves)


def written(cluster: Nodes, *batches: EncodedBatch) -> list[int]:
    """Write requests; return the write timestamps of the refused rows."""
    sender = Sender(cluster.connection, Concurrency(), FlushMetrics(), timeout_s=5, patience_s=0.3)
    for _, of_one_plan in itertools.groupby(batches, lambda batch: batch.statements):
        sender.send(of_one_plan)
    return [row.us for row in sender.drain()]


def always(*bad: int) -> Node:
    """Return a node that refuses each request with one of some rows."""

    def refuses(_: Node, rows: list[int], frame: Frame) -> Frame | None:
        return error(frame, INVALID) if {*bad} & {*rows} else None

    return Node(refuses)


@pytest.mark.parametrize("bad", [{0}, {7}, {599}, {0, 1}, {0, 7, 300, 599}, set(range(10, 20))])
def test_refused_rows_are_named_and_others_written(bad: set[int]) -> None:
    """The number of requests is limited: halvings for each refused row, and one more request."""
    batch = request(rows=600)
    rows = numbers(batch)
    refused = [rows[number] for number in sorted(bad)]
    node = always(*refused)
    with nodes(answers=node) as cluster:
        assert written(cluster, batch) == refused
    assert {*node.taken} == {*rows} - {*refused}
    assert len(node.asked) <= 2 * 11 * len(bad) + 3


@pytest.mark.parametrize("place", [0, 3])
def test_row_refused_again_after_an_accepted_row_is_named(place: int) -> None:
    """The other rows are written before the last try of this row, so one of them is sent again."""
    batch = request(rows=4)
    rows = numbers(batch)
    node = always(rows[place])
    with nodes(answers=node) as cluster:
        assert written(cluster, batch) == [rows[place]]
    begin, end = (i for i, (sent, _) in enumerate(node.asked) if sent == [rows[place]])
    assert any(is_taken for _, is_taken in node.asked[begin:end])
    assert {*node.taken} == {*rows} - {rows[place]}


@pytest.mark.parametrize("size", [1, 4])
def test_row_accepted_at_the_second_try_is_written(size: int) -> None:
    batch = request(rows=size)
    bad = numbers(batch)[size // 2]

    def refuses(node: Node, rows: list[int], frame: Frame) -> Frame | None:
        was_alone = node.asked.count(([bad], False)) == (2 if size == 1 else 1)
        return error(frame, INVALID) if bad in rows and not was_alone else None

    node = Node(refuses)
    with nodes(answers=node) as cluster:
        assert written(cluster, batch) == []
    assert {*node.taken} == {*numbers(batch)}


def test_refused_rows_are_sent_again_after_an_accepted_row() -> None:
    """The node accepts the last row at the second try, and then all other rows."""
    batch = request(rows=3)
    *others, last = numbers(batch)

    def refuses(node: Node, rows: list[int], frame: Frame) -> Frame | None:
        was_alone = ([last], False) in node.asked and ([others[0]], False) in node.asked[-2:]
        was_taken = ([last], True) in node.asked
        return None if was_taken or (rows == [last] and was_alone) else error(frame, INVALID)

    node = Node(refuses)
    with nodes(answers=node) as cluster:
        assert written(cluster, batch) == []
    assert {*node.taken} == {*numbers(batch)}


def test_written_request_is_sent_again_to_confirm_a_refusal() -> None:
    """The refused request has no second row to compare with."""
    good, bad = request(rows=3), request()
    node = always(*numbers(bad))
    with nodes(answers=node) as cluster:
        assert written(cluster, good, bad) == numbers(bad)
    assert sorted(node.taken) == sorted(numbers(good) * 2)


def test_only_row_of_a_window_is_named_if_refused() -> None:
    batch = request()
    node = always(*numbers(batch))
    with nodes(answers=node) as cluster:
        assert written(cluster, batch) == numbers(batch)
    assert node.asked == [(numbers(batch), False)] * 3


@pytest.mark.parametrize(("place", "other"), [(1, 3), (3, 2)])
def test_outage_during_the_search_blames_no_row(place: int, other: int) -> None:
    """The outage comes while the request is halved, or before the second refusal."""
    batch = request(rows=4)
    bad, lost = numbers(batch)[place], numbers(batch)[other]

    def refuses(node: Node, rows: list[int], frame: Frame) -> Frame | None:
        if ([bad], False) in node.asked and lost in rows:
            return error(frame, OVERLOADED)
        return error(frame, INVALID) if bad in rows else None

    with nodes(answers=Node(refuses)) as cluster, pytest.raises(TargetUnavailable):
        written(cluster, batch)


def test_row_refused_after_an_overload_is_named() -> None:
    batch = request(rows=4)
    bad = numbers(batch)[1]

    def refuses(node: Node, rows: list[int], frame: Frame) -> Frame | None:
        if not node.asked:
            return error(frame, OVERLOADED)
        return error(frame, INVALID) if bad in rows else None

    node = Node(refuses)
    with nodes(answers=node) as cluster:
        assert written(cluster, batch) == [bad]
    assert {*node.taken} == {*numbers(batch)} - {bad}


@pytest.mark.parametrize("size", [1, 600])
def test_table_that_refuses_all_rows_blames_no_row(size: int) -> None:
    batches = [request(rows=size) for _ in range(600 // size)]
    node = always(*numbers(*batches))
    with (
        nodes(answers=node) as cluster,
        pytest.raises(TargetRefused, match="Cassandra refuses the row with"),
    ):
        written(cluster, *batches)
    assert len({row for rows, _ in node.asked if len(rows) == 1 for row in rows}) <= 600


def test_rows_sent_once_are_not_repeated_beside_a_refusal() -> None:
    """A refused row may be sent again. An accepted row would be doubled."""
    good, bad = request(rows=3, statements=SENT_ONCE), request(rows=5, statements=SENT_ONCE)
    number = numbers(bad)[4]
    node = always(number)
    with nodes(answers=node) as cluster:
        assert written(cluster, good, bad) == [number]
    assert sorted(node.taken) == sorted({*numbers(good), *numbers(bad)} - {number})
    assert node.asked.count(([number], False)) == 1


def test_accepted_lists_are_not_sent_again_beside_a_refusal() -> None:
    """The refused row itself may be sent again."""
    good, bad = request(rows=3, statements=SENT_ONCE), request()
    node = always(*numbers(bad))
    with nodes(answers=node) as cluster:
        assert written(cluster, good, bad) == numbers(bad)
    assert sorted(node.taken) == sorted(numbers(good))
