"""Which rows of a request the server refuses, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut, WriteFailure
from cassandra.cluster import NoHostAvailable
from cassandra.query import UNSET_VALUE

from wal_sink.errors import TargetRefused
from wal_sink.targets.cassandra.driver.errors import is_refused, may_be_a_row
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, statement_head
from wal_sink.targets.cassandra.driver.internals import ServerError
from wal_sink.targets.cassandra.write.refusals import Refusals, find_refused, refusal


def failure(*reasons: int) -> Exception:
    codes = {f"10.0.0.{i}": code for i, code in enumerate(reasons)}
    error: Exception = WriteFailure("no", error_code_map=codes)
    return error


def server_error() -> Any:
    return ServerError(0x0000, "java.lang.IllegalArgumentException", None)


def test_whose_fault_it_may_be() -> None:
    """UNKNOWN from each replica that failed, or an exception in the coordinator; not an overload."""
    assert may_be_a_row(failure(0, 0))
    assert may_be_a_row(WriteFailure("before version 5"))
    assert may_be_a_row(server_error())
    assert may_be_a_row(NoHostAvailable("none", {"a": server_error(), "b": server_error()}))
    for other in failure(0, 2), OperationTimedOut(), InvalidRequest("x"), NoHostAvailable("", {}):
        assert not may_be_a_row(other)
    assert is_refused(InvalidRequest("x"))
    assert is_refused(NoHostAvailable("none", {"a": InvalidRequest("x")}))
    assert not is_refused(failure(0))
    assert not is_refused(NoHostAvailable("none", {}))


def encoded(*ids: int) -> EncodedBatch:
    """A batch of rows with a key, a null and an unset value, and a timestamp."""
    values = [(i.to_bytes(4, "big"), -1, -2, bytes(8)) for i in ids]
    data = b"".join(statement_head(b"q" * 16, 4) + b"".join(map(_encode, row)) for row in values)
    return EncodedBatch(len(ids), data, "ks", b"routing")


def _encode(value: Any) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(4, "big", signed=True)
    return len(value).to_bytes(4, "big") + bytes(value)


def keys(request: Any) -> list[int]:
    """The rows of a request, by taking it apart."""
    parts = request.halves()
    if parts:
        assert all((part.keyspace, part.routing_key) == ("ks", b"routing") for part in parts)
        return [key for part in parts for key in keys(part)]
    query_id, values = next(request.statements())
    assert (query_id, values[1:]) == (b"q" * 16, [None, UNSET_VALUE, bytes(8)])
    assert values[0] is not None
    return [int.from_bytes(values[0], "big")]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 600])
def test_a_request_is_taken_apart(count: int) -> None:
    """Every row is in one part, in its order, with its bytes."""
    assert keys(encoded(*range(count))) == list(range(count))


def test_no_row_is_taken() -> None:
    """Nothing tells the row from its neighbours; no more than a few parts are sent."""
    sent = []

    def send(request: Any) -> Exception | None:
        sent.append(request)
        return failure(0)

    found = next(find_refused(encoded(*range(600)), failure(0), send))
    assert found is not None
    assert (keys(found.request), found.others_are_taken) == ([0], False)
    assert len(sent) <= 2 * 10


TOO_LARGE: Exception = InvalidRequest("Batch too large")


def test_no_row_is_to_blame() -> None:
    """Each part is taken by itself, and all are sent; a row alone is its own part; an outage is no answer."""
    sent = []

    def small(request: Any) -> Exception | None:
        if len(keys(request)) > 30:
            return TOO_LARGE
        sent.extend(keys(request))
        return None

    assert list(find_refused(encoded(*range(600)), TOO_LARGE, small)) == []
    assert sent == list(range(600))
    alone = next(find_refused(encoded(5), failure(0), small))
    assert alone is not None
    assert (keys(alone.request), alone.others_are_taken) == ([5], False)
    with pytest.raises(OperationTimedOut):
        list(find_refused(encoded(1, 2), failure(0), lambda _: OperationTimedOut()))


def test_what_is_said_of_the_row() -> None:
    """Who refuses it, and what to do; also where it is too old for the server."""
    refused = refusal("the row with id=1", InvalidRequest("Cannot index value of size 70000"))
    assert isinstance(refused, TargetRefused)
    assert "Cassandra refuses the row with id=1: InvalidRequest: Cannot index" in refused.what
    failed = refusal("the row with id=1", failure(0))
    assert "fails to write the row with id=1, and takes other rows: WriteFailure" in failed.what
    assert "DROP INDEX" in failed.remedy
    assert refused.remedy == "Change in the table what refuses it."
    old = refusal("r", InvalidRequest("timestamp 1 is below the minimum allowable timestamp 2"))
    assert "longest outage" in old.remedy


def looked(
    bad: set[int], error: Exception, count: int = 600, *, takes_others: bool = False
) -> tuple[list[int], int | None, list[list[int]]]:
    """Return which rows of a request are skipped, their number, and what was sent."""
    skipped: list[int] = []
    sent: list[list[int]] = []

    def send(request: Any) -> Exception | None:
        sent.append(keys(request))
        return error if bad.intersection(sent[-1]) else None

    refusals = Refusals(lambda request: f"row {keys(request)}", send, lambda: takes_others)
    refusals.on_refused = lambda request, _: skipped.extend(keys(request))
    return skipped, refusals.look(encoded(*range(count)), error), sent


@pytest.mark.parametrize("error", [failure(0), InvalidRequest("Cannot index value of size 70000")])
def test_every_refused_row_is_skipped_and_every_other_one_sent(error: Exception) -> None:
    """In one look: a row costs its bisection, and those behind it wait no longer."""
    bad = {0, 7, 300, 599}
    skipped, number, sent = looked(bad, error)
    assert (sorted(skipped), number) == (sorted(bad), len(bad))
    taken = {key for part in sent if not bad.intersection(part) for key in part}
    assert taken == set(range(600)) - bad
    assert len(sent) <= 2 * 10 * len(bad) + 2


def test_where_no_row_is_taken_none_is_skipped() -> None:
    """It is the table, a permission or a guardrail that refuses; a lone row is believed once."""
    every = set(range(600))
    with pytest.raises(TargetRefused, match=r"row \[1\]"):
        looked(every, InvalidRequest("Write consistency level ONE is not allowed"))
    assert looked({0}, InvalidRequest("no"), count=1)[:2] == ([0], 1)
    assert looked(every, failure(0))[:2] == ([], None)
    assert looked({0}, failure(0), count=1, takes_others=True)[:2] == ([0], 1)


@pytest.mark.parametrize(
    "said",
    [
        "unconfigured table t",
        "Keyspace 'ks' doesn't exist",
        "table t does not exist",
        "keyspace ks does not exist",
        "Undefined column name v in table ks.t",
    ],
)
@pytest.mark.parametrize(
    "form", ["{}", 'Error from server: code=2200 [Invalid query] message="{}"']
)
def test_a_node_that_lacks_the_table_blames_no_row(said: str, form: str) -> None:
    """One that has joined just now, say: rows that another one takes go into quarantine for nothing less."""
    lagging = InvalidRequest(form.format(said))
    assert looked({0, 7}, lagging)[:2] == ([], None)
    assert looked({0}, lagging, count=1)[:2] == ([], None)


def test_a_row_that_is_too_old_for_the_server_is_not_skipped() -> None:
    """So is every other row of its epoch, and of those that waited as long."""
    old = InvalidRequest("timestamp 1 is below the minimum allowable timestamp 2")
    with pytest.raises(TargetRefused):
        looked({3}, old)
