"""Paths of the log: what is made is parsed back, and nothing else is taken for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_backends import check_path
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt

EPOCHS = st.integers(0, 2**63 - 1)
GENERATIONS = st.integers(1, 10**9)
NUMBERS = st.integers(0, 10**7)

PARSERS: list[Callable[[str], object]] = [
    paths.parse_manifest,
    paths.parse_kept,
    paths.parse_swept,
    paths.parse_run,
    paths.parse_flushed,
    paths.parse_flushed_window,
    paths.parse_segment_epoch,
]


@given(EPOCHS, GENERATIONS)
@settings(deadline=None)
def test_a_manifest_is_parsed_back(epoch: int, generation: int) -> None:
    """By its own parser, and by no other."""
    path = paths.manifest(Attempt(epoch, generation))
    assert paths.parse_manifest(path) == Attempt(epoch, generation)
    only(paths.parse_manifest, path)


@given(EPOCHS, GENERATIONS)
@settings(deadline=None)
def test_a_kept_note_is_parsed_back(epoch: int, generation: int) -> None:
    """It names an attempt, as a manifest does, and is never taken for one."""
    path = paths.kept(Attempt(epoch, generation))
    assert paths.parse_kept(path) == Attempt(epoch, generation)
    only(paths.parse_kept, path)


@given(EPOCHS, GENERATIONS)
@settings(deadline=None)
def test_a_note_of_what_was_swept_is_parsed_back(epoch: int, generation: int) -> None:
    """It names an attempt, too, and is never taken for a manifest."""
    path = paths.swept(Attempt(epoch, generation))
    assert paths.parse_swept(path) == Attempt(epoch, generation)
    only(paths.parse_swept, path)


@pytest.mark.parametrize("run_id", ["0b2f6c1e-8d4a-4f57-9a3e-6c1d2e3f4a5b", "run"])
def test_a_segment_tells_its_run(run_id: str) -> None:
    """In its name, so that a listing is enough; those of version 0.1.0 do not."""
    path = paths.segment(41, 5, 2, paths.unique_in_run(run_id, uuid.uuid4().hex))
    assert paths.parse_segment_run(path) == run_id
    assert paths.parse_segment_epoch(path) == 41
    assert paths.parse_segment_task(path) == (5, 2)
    assert paths.is_segment_of(path, 41)
    assert paths.parse_segment_run(paths.segment(41, 5, 2, uuid.uuid4().hex)) is None


@given(GENERATIONS)
@settings(deadline=None)
def test_a_claim_is_parsed_back(generation: int) -> None:
    """Also above a million generations, where the number is longer than its padding."""
    path = paths.run(generation)
    assert paths.parse_run(path) == generation
    only(paths.parse_run, path)


@given(EPOCHS)
@settings(deadline=None)
def test_a_flushed_record_is_parsed_back(epoch: int) -> None:
    """The newest of them is the log's mark."""
    path = paths.flushed(epoch)
    assert paths.parse_flushed(path) == epoch
    only(paths.parse_flushed, path)


@given(EPOCHS, EPOCHS, NUMBERS)
@settings(deadline=None)
def test_the_records_of_a_window_are_parsed_back(first: int, last: int, us: int) -> None:
    """They are no record of one epoch, which could be the mark."""
    path = paths.flushed_window(first, last, us)
    assert paths.parse_flushed_window(path) == (first, last)
    only(paths.parse_flushed_window, path)


@given(EPOCHS, NUMBERS, NUMBERS, st.uuids())
@settings(deadline=None)
def test_a_segment_is_parsed_back(
    epoch: int, partition: int, attempt: int, unique: uuid.UUID
) -> None:
    """And lies in the folder of its epoch, which is what trim lists."""
    path = paths.segment(epoch, partition, attempt, unique.hex)
    assert paths.parse_segment_epoch(path) == epoch
    assert paths.parse_segment_task(path) == (partition, attempt)
    assert path.startswith(paths.segment_folder(epoch))
    only(paths.parse_segment_epoch, path)


def only(parser: Callable[[str], object], path: str) -> None:
    """No other parser takes the path, and a store does."""
    assert [other(path) for other in PARSERS if other is not parser] == [None] * (len(PARSERS) - 1)
    assert check_path(path) == path


@given(st.text())
@settings(deadline=None)
def test_what_is_parsed_was_made_here(path: str) -> None:
    """No text has two readings: whatever a parser takes is what its maker makes of the result."""
    attempt = paths.parse_manifest(path)
    assert attempt is None or paths.manifest(attempt) == path
    generation = paths.parse_run(path)
    assert generation is None or paths.run(generation) == path
    epoch = paths.parse_flushed(path)
    assert epoch is None or paths.flushed(epoch) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "log.json",
        "flusher.json",
        "plans/abc.json",
        "tickets/5a4f1c1e-6a0f-4a4e-9c55-0b9c0e3c1b2d.json",
        # too short, too long, signed, not ASCII
        "manifests/0-000001.json",
        "manifests/0000000000000000000-000001.json",
        "manifests/000000000000000000000-000001.json",
        "manifests/00000000000000000000-00001.json",
        "manifests/-0000000000000000001-000001.json",
        "manifests/00000000000000000000--00001.json",
        "manifests/0000000000000000000٣-000001.json",
        "flushed/0.json",
        "flushed/0000000000000000000٣.json",
        "runs/1.json",
        "runs/00000٣.json",
        "segments/0/000000-0-x.arrow",
        "segments/0000000000000000000٣/000000-0-x.arrow",
        # another number than the padded one would be
        "manifests/00000000000000000000-0000001.json",
        "runs/0000001.json",
        # something before, behind or between
        "x/manifests/00000000000000000000-000001.json",
        "manifests/x/00000000000000000000-000001.json",
        "manifests/00000000000000000000-000001.json.bak",
        "manifests/00000000000000000000-000001.json\n",
        "manifests/00000000000000000000-000001xjson",
        "manifests/00000000000000000000-000001.json/x",
        "manifests/.00000000000000000000-000001.json",
        "runs/000001.json\n",
        "flushed/00000000000000000000.json\n",
        "flushed/00000000000000000000xjson",
        "segments/00000000000000000000/a/b.arrow",
        "segments/00000000000000000000/.arrow.tmp",
        "segments/00000000000000000000/a.arrow\n",
        "segments/00000000000000000000/",
        "segments/a.arrow",
        # of the right form in another folder
        "flushed/00000000000000000000-000001.json",
        "manifests/00000000000000000000.json",
        "manifests/000001.json",
        "runs/00000000000000000000-000001.json",
    ],
)
def test_a_foreign_path_is_nothing(path: str) -> None:
    """What an editor, a copy or a later version leaves there is passed over."""
    assert [parse(path) for parse in PARSERS] == [None] * len(PARSERS)


@given(EPOCHS, EPOCHS, NUMBERS, NUMBERS)
@settings(deadline=None)
def test_epochs_sort_as_text_as_they_sort_as_numbers(
    one: int, other: int, first: int, second: int
) -> None:
    """Stores list names sorted as text; people look at them so, too."""
    makers: list[Callable[[int], str]] = [
        paths.flushed,
        paths.segment_folder,
        lambda epoch: paths.manifest(Attempt(epoch, first if epoch == one else second)),
        lambda epoch: paths.segment(epoch, first if epoch == one else second, 0, "x"),
    ]
    for make in makers:
        assert (make(one) < make(other)) == (one < other) or one == other


@given(st.integers(0, 999_999), st.integers(0, 999_999))
@settings(deadline=None)
def test_generations_and_partitions_sort_within_their_padding(one: int, other: int) -> None:
    """A million runs of a query, or partitions of a micro-batch."""
    for make in (
        paths.run,
        lambda number: paths.manifest(Attempt(7, number)),
        lambda number: paths.segment(7, number, 0, "x"),
    ):
        assert (make(one) < make(other)) == (one < other)


def test_paths_are_as_documented() -> None:
    """Operators, and later versions, find things where the architecture says."""
    assert paths.LOG == "log.json"
    assert paths.FLUSHER == "flusher.json"
    assert paths.plan("key") == "plans/key.json"
    assert paths.ticket("run") == "tickets/run.json"
    assert paths.stop("run") == "stops/run.json"
    assert paths.run(12) == "runs/000012.json"
    assert paths.manifest(Attempt(41, 3)) == "manifests/00000000000000000041-000003.json"
    assert paths.kept(Attempt(41, 3)) == "kept/00000000000000000041-000003.json"
    assert paths.swept(Attempt(41, 3)) == "swept/00000000000000000041-000003.json"
    assert paths.segment(41, 5, 2, "x") == "segments/00000000000000000041/000005-2-x.arrow"
    assert paths.flushed(41) == "flushed/00000000000000000041.json"
