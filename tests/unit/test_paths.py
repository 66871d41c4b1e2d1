"""Paths of the log: what is made is parsed back, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_backends import check_path
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.model.paths import (
    DecisionName,
    EntryName,
    InterventionName,
    Name,
    SegmentName,
    WindowName,
)

EPOCHS = st.integers(0, 2**63 - 1)
GENERATIONS = st.integers(1, 10**9)
NUMBERS = st.integers(0, 10**7)
TIMES = st.integers(0, 2**63 - 1)
WORDS = st.from_regex(r"[0-9A-Za-z_-]+", fullmatch=True)
ATTEMPTS = st.builds(Attempt, EPOCHS, GENERATIONS)
ENTRIES = st.builds(EntryName, EPOCHS, WORDS, NUMBERS, NUMBERS)

KEYS: dict[str, st.SearchStrategy[Any]] = {
    "IDENTITY": st.just(()),
    "REPORT": st.just(()),
    "PLAN": WORDS,
    "TICKET": WORDS,
    "STOP": WORDS,
    "CLAIM": GENERATIONS,
    "MANIFEST": ATTEMPTS,
    "PROOF": ATTEMPTS,
    "TOMBSTONE": ATTEMPTS,
    "WITHOUT_SINK": EPOCHS,
    "CHOICE": EPOCHS,
    "FLUSHED": st.builds(WindowName, EPOCHS, EPOCHS, TIMES),
    "RETAINED_MANIFEST": ATTEMPTS,
    "RETAINED_RECORD": EPOCHS,
    "DECISION": st.builds(DecisionName, EPOCHS, NUMBERS),
    "INTERVENTION": st.builds(InterventionName, st.sampled_from(["adopt", "rewind"]), TIMES),
    "QUARANTINED": ENTRIES,
    "SEGMENT": st.builds(
        SegmentName,
        EPOCHS,
        NUMBERS,
        NUMBERS,
        WORDS,
        st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    ),
}
"""How the keys of each kind are."""


def kind(name: str) -> Name[Any]:
    found = getattr(paths, name)
    assert isinstance(found, Name)
    return found


def test_every_kind_is_tested() -> None:
    """A new one comes with its keys."""
    assert {
        name for name, value in vars(paths).items() if type(value) in (paths.Name, paths.Kind)
    } == {
        *KEYS,
        "_IN_SEGMENTS",
    }


@pytest.mark.parametrize("name", KEYS)
@given(st.data())
@settings(deadline=None, max_examples=30)
def test_a_path_is_parsed_back(name: str, data: st.DataObject) -> None:
    """By its own kind, and by no other; a store takes it."""
    key = data.draw(KEYS[name])
    path = kind(name).path(key)
    assert kind(name).parse(path) == key
    assert [other for other in KEYS if kind(other).parse(path) is not None] == [name]
    assert path.startswith(kind(name).folder)
    assert check_path(path) == path


@pytest.mark.parametrize("name", KEYS)
@given(st.text())
@settings(deadline=None, max_examples=30)
def test_what_is_parsed_was_made_here(name: str, text: str) -> None:
    """No text has two readings: whatever is parsed is what is made of the result."""
    key = kind(name).parse(text)
    assert key is None or kind(name).path(key) == text


@given(EPOCHS, NUMBERS, NUMBERS)
@settings(deadline=None)
def test_a_file_among_the_segments_has_their_epoch(
    epoch: int, partition: int, attempt: int
) -> None:
    """One of a foreign name, too: it goes with its epoch, and is not of a run."""
    path = paths.SEGMENT.path(SegmentName(epoch, partition, attempt, "run", "0" * 32))
    assert (paths.segment_epoch(path), paths.segment_run(path)) == (epoch, "run")
    assert paths.is_segment_of(path, epoch)
    foreign = f"{paths.segment_folder(epoch)}copy.arrow"
    assert (paths.segment_epoch(foreign), paths.segment_run(foreign)) == (epoch, None)
    assert not paths.is_segment_of(foreign, epoch)


@pytest.mark.parametrize(
    "path",
    [
        "",
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
        "flushed/00000000000000000000-00000000000000000000-00000000000000000000.json\n",
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
    assert [name for name in KEYS if kind(name).parse(path) is not None] == []
    assert paths.segment_epoch(path) is None


@given(EPOCHS, EPOCHS, NUMBERS, NUMBERS)
@settings(deadline=None)
def test_epochs_sort_as_text_as_they_sort_as_numbers(
    one: int, other: int, first: int, second: int
) -> None:
    """Stores list names sorted as text; people look at them so, too."""
    makers: list[Callable[[int], str]] = [
        lambda epoch: paths.FLUSHED.path(WindowName(epoch, first, second)),
        paths.segment_folder,
        lambda epoch: paths.MANIFEST.path(Attempt(epoch, first if epoch == one else second)),
    ]
    for make in makers:
        assert (make(one) < make(other)) == (one < other) or one == other


@given(st.integers(0, 999_999), st.integers(0, 999_999))
@settings(deadline=None)
def test_generations_and_partitions_sort_within_their_padding(one: int, other: int) -> None:
    """A million runs of a query, or partitions of a micro-batch."""
    makers: list[Callable[[int], str]] = [
        paths.CLAIM.path,
        lambda number: paths.MANIFEST.path(Attempt(7, number)),
        lambda number: paths.SEGMENT.path(SegmentName(7, number, 0, "run", "0" * 32)),
    ]
    for make in makers:
        assert (make(one) < make(other)) == (one < other)


def test_a_plan_key_is_no_other_place() -> None:
    """It comes from a manifest, which anyone may have written."""
    assert paths.is_plan_key("9f86d081884c7d659a2feaa0c55ad015")
    assert not any(map(paths.is_plan_key, ("", "../x", "a/b", "a.json", "é")))


def test_paths_are_as_documented() -> None:
    """Operators, and later versions, find things where the architecture says."""
    attempt = "00000000000000000041-000003"
    assert paths.LOG == "log.json"
    assert paths.FLUSHER == "flusher.json"
    assert paths.PLAN.path("key") == "plans/key.json"
    assert paths.TICKET.path("run") == "tickets/run.json"
    assert paths.STOP.path("run") == "stops/run.json"
    assert paths.CLAIM.path(12) == "runs/000012.json"
    assert paths.MANIFEST.path(Attempt(41, 3)) == f"manifests/{attempt}.json"
    assert paths.PROOF.path(Attempt(41, 3)) == f"proofs/{attempt}.json"
    assert paths.TOMBSTONE.path(Attempt(41, 3)) == f"tombstones/{attempt}.json"
    segment = SegmentName(41, 5, 2, "run", "0" * 32)
    assert paths.SEGMENT.path(segment) == (
        f"segments/00000000000000000041/000005-2-run-{'0' * 32}.arrow"
    )
    window = paths.FLUSHED.path(WindowName(41, 40, 7))
    assert window == f"flushed/{41:020}-{40:020}-{7:020}.json"
    assert paths.DECISION.path(DecisionName(41, 1)) == "decisions/00000000000000000041-000001.json"
