"""Answers to pipelined requests, read many at once: what is no acknowledgement is the driver's to read."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.segment import Segment

from tests.cassandra.cql_nodes import (
    INVALID,
    NOTHING,
    RESULT,
    Frame,
    Nodes,
    error,
    nodes,
    request,
    value_of,
    well,
)
from wal_sink.targets.cassandra.driver.internals import in_frames
from wal_sink.targets.cassandra.driver.pipeline import Ended, PipelinedRequests

WIRES = [(4, False), (4, True), (5, False), (5, True)]
"""Version of the protocol, and whether it compresses."""


class Reads(list[int]):
    """The streams whose answers the driver has read."""


@contextmanager
def awaiting(
    number: int, version: int = 5, *, compresses: bool = False, timeout_s: float = 5
) -> Iterator[tuple[Nodes, PipelinedRequests, list[Ended], Reads]]:
    """Send a group to a node that does not answer, and note what the driver reads."""
    with nodes(1, version, compresses=compresses) as to:
        by, wire = PipelinedRequests(to.session, "dc", timeout_s), to.wire()
        reads, reading = Reads(), wire.process_msg

        def read(header: Any, body: bytes) -> None:
            reads.append(header.stream)
            reading(header, body)

        wire.process_msg = read
        wire.answer = lambda _: None
        told: list[Ended] = []
        assert by.send([request() for _ in range(number)], None, told.append)
        yield to, by, told, reads


@pytest.mark.parametrize(("version", "compresses"), WIRES)
def test_one_read_acknowledges_many(version: int, *, compresses: bool) -> None:
    """In any order, and of several segments; the driver reads none of them."""
    with awaiting(30, version, compresses=compresses) as (to, _, told, reads):
        wire = to.wire()
        answers = list(map(well, reversed(wire.requests)))
        wire.receive(b"".join(wire.packed(*answers[at : at + 10]) for at in (0, 10, 20)))
        (ended,) = told
        assert (ended.acknowledged, ended.failed, reads) == (30, [], [])
        assert to.in_use() == NOTHING
        assert wire.msg_received  # or the driver would ask the node whether it is there


@pytest.mark.parametrize(("version", "compresses"), WIRES)
def test_answers_split_anywhere(version: int, *, compresses: bool) -> None:
    """What has come as a whole is taken, and the rest waits for what follows."""
    with awaiting(3, version, compresses=compresses) as (to, by, told, reads):
        wire = to.wire()
        groups = 1
        for cut in range(1, len(wire.packed(*map(well, wire.requests)))):
            data = wire.packed(*map(well, wire.requests))
            wire.receive(data[:cut])
            assert len(told) == groups - 1
            wire.receive(data[cut:])
            assert [each.acknowledged for each in told] == [3] * groups
            assert to.in_use() == NOTHING
            wire.pushes.clear()
            assert by.send([request() for _ in range(3)], None, told.append)
            groups += 1
        assert reads == []


@pytest.mark.parametrize(("version", "compresses"), WIRES)
def test_other_answers_split_anywhere(version: int, *, compresses: bool) -> None:
    """What the driver reads need not have come as a whole, either: a header, a payload, a checksum."""
    with awaiting(3, version, compresses=compresses) as (to, by, told, reads):
        wire = to.wire()
        groups = 1
        for cut in itertools.count(1):
            first, *others = wire.requests
            data = wire.packed(error(first, INVALID)) + wire.packed(error(others[0], INVALID))
            if cut == len(data):
                break
            wire.receive(data[:cut])
            wire.receive(data[cut:] + wire.packed(well(others[1])))
            assert not wire.is_defunct, f"cut at {cut}: {wire.last_error}"
            assert [(each.acknowledged, len(each.failed)) for each in told] == [(1, 2)] * groups
            assert to.in_use() == NOTHING
            wire.pushes.clear()
            assert by.send([request() for _ in range(3)], None, told.append)
            groups += 1
        assert len(reads) >= 2 * (groups - 1)


@pytest.mark.parametrize(("version", "compresses"), WIRES)
@pytest.mark.parametrize("together", [True, False])
def test_an_error_among_acknowledgements(version: int, *, compresses: bool, together: bool) -> None:
    """It comes to its own request as the driver's exception, in one segment with others or in its own."""
    with awaiting(9, version, compresses=compresses) as (to, _, told, reads):
        wire = to.wire()
        refused = wire.requests[4]
        answers = [
            error(each, INVALID) if each is refused else well(each) for each in wire.requests
        ]
        wire.receive(wire.packed(*answers) if together else b"".join(map(wire.packed, answers)))
        (ended,) = told
        ((failed, why),) = ended.failed
        assert ended.acknowledged == 8
        assert value_of(failed) == value_of(refused)
        assert isinstance(why, InvalidRequest)
        assert refused.stream in reads
        assert to.in_use() == NOTHING


@pytest.mark.parametrize(
    "other",
    [
        Frame(0, RESULT, struct.pack(">i", 2)),
        Frame(0, RESULT, b""),
        Frame(0, 0x02, b"\0\0\0\1"),
        Frame(-1, RESULT, b"\0\0\0\1"),
    ],
    ids=["rows", "empty", "ready", "event"],
)
def test_other_answers_are_no_acknowledgements(other: Frame) -> None:
    """Only VOID is one."""
    void = struct.pack(">BBhBi", 0x84, 0, 7, RESULT, 4) + b"\0\0\0\1"
    frame = struct.pack(">BBhBi", 0x84, 0, other.stream, other.opcode, len(other.body)) + other.body
    for before in (b"", void, void * 2):
        found = in_frames(before + frame + void, 4, None)
        assert found == ([7] * (len(before) // len(void)), len(before), False)
    for first, second in (
        (0x85, 0),
        (0x84, 2),
        (0x84, 1),
        (0x04, 0),
    ):  # version, tracing, compressed
        assert in_frames(void + bytes([first, second]) + void[2:], 4, None) == ([7], 13, False)


@pytest.mark.parametrize("version", [4, 5])
def test_an_answer_of_a_stream_that_nothing_waits_for(version: int) -> None:
    """The driver reads what came with it, and drops that one."""
    with awaiting(5, version) as (to, by, told, reads):
        wire = to.wire()
        unknown = wire.get_request_id()
        answers = list(map(well, wire.requests))
        wire.reply(*answers[:2], Frame(unknown, RESULT, b"\0\0\0\1"), *answers[2:])
        (ended,) = told
        assert ended.acknowledged == 5
        assert unknown in reads
        assert to.in_use() == NOTHING
        reads.clear()
        wire.answer = well
        assert by.send([request() for _ in range(5)], None, told.append)
        assert (told[-1].acknowledged, reads) == (5, [])


def test_an_answer_that_comes_twice_frees_its_stream_once() -> None:
    """Two requests on one stream would take each other's answers."""
    with awaiting(4) as (to, _, told, _):
        wire = to.wire()
        answers = list(map(well, wire.requests))
        wire.reply(*answers[:2], answers[0])
        assert told == []
        wire.reply(*answers[2:])
        assert told[0].acknowledged == 4
        freed = list(wire.request_ids)
        assert freed.count(answers[1].stream) == freed.count(answers[2].stream) == 1


def test_a_stream_is_free_after_its_request_was_told() -> None:
    """Until then `expire` may look for it, and must not find what another has sent on it."""
    with awaiting(3) as (to, _, _, _):
        wire = to.wire()
        streams = {each.stream for each in wire.requests}
        seen: list[set[int]] = []
        answered, *more = wire._requests[min(streams)]

        def looks(these: Any) -> None:
            seen.append(streams & set(wire.request_ids))
            answered(these)

        wire._requests.update(dict.fromkeys(streams, (looks, *more)))
        wire.reply(*map(well, wire.requests))
        assert seen == [set()]
        assert to.in_use() == NOTHING


def test_a_driver_that_closes_while_answers_are_told() -> None:
    """Those that are told are acknowledged; the others fail with the connection."""
    with awaiting(4) as (to, by, told, _):
        wire = to.wire()
        others: list[Ended] = []
        assert by.send([request() for _ in range(2)], None, others.append)
        frames = wire.requests
        tell = told.append

        def closes(ended: Ended) -> None:
            tell(ended)
            wire.close()

        (sent, _) = list(by._in_flight)[-2:]
        sent._on_done = closes
        wire.reply(*map(well, frames[:4]))
        assert [each.acknowledged for each in told] == [4]
        assert [len(each.failed) for each in others] == [2]


def test_a_wrong_checksum_is_the_drivers_to_judge() -> None:
    """It gives the connection up, and nothing is acknowledged by those bytes."""
    with awaiting(3) as (to, _, told, _):
        wire = to.wire()
        data = bytearray(wire.packed(*map(well, wire.requests)))
        data[-1] ^= 1
        wire.receive(bytes(data))
        (ended,) = told
        assert (ended.acknowledged, len(ended.failed)) == (0, 3)
        assert wire.is_defunct


@pytest.mark.parametrize("more", range(-4, 8))
def test_an_answer_longer_than_a_segment(more: int) -> None:
    """The driver reads all of its segments, and what comes with them.

    :param more: bytes of the second segment that come with the first; fewer than 0: these are missing.
    """
    with awaiting(3) as (to, _, told, reads):
        wire = to.wire()
        first, *others = wire.requests
        long = error(first, INVALID)._replace(
            body=struct.pack(">iH", INVALID, 0xFFFF)
            + b"x" * 0xFFFF
            + bytes(Segment.MAX_PAYLOAD_LENGTH)
        )
        data = wire.packed(long)
        half = Segment.MAX_PAYLOAD_LENGTH + 10 + more
        wire.receive(data[:half])
        wire.receive(data[half:] + wire.packed(*map(well, others)))
        (ended,) = told
        assert (ended.acknowledged, len(ended.failed)) == (2, 1)
        assert sorted(reads) == sorted([first.stream, *(each.stream for each in others)])
        assert to.in_use() == NOTHING
