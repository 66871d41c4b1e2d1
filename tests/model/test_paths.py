"""Paths of the log: a formatted path is parsed back, and a path of another kind is not parsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_backends import check_path
from wal_sink.model import paths
from wal_sink.model.paths import (
    ManifestName,
    Name,
    PlanName,
    RefusedName,
    RefusedRowName,
    SegmentName,
)

EPOCHS = st.integers(0, 2**63 - 1)
NUMBERS = st.integers(0, 10**7)
TIMES = st.integers(0, 2**63 - 1)
WORDS = st.from_regex(r"[0-9A-Za-z_-]+", fullmatch=True)
HEX = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
TARGETS = st.from_regex(paths.TARGET_NAME, fullmatch=True)

KEYS: dict[str, st.SearchStrategy[Any]] = {
    "STATE": NUMBERS,
    "MANIFEST": st.builds(ManifestName, EPOCHS, WORDS),
    "SEGMENT": st.builds(SegmentName, EPOCHS, NUMBERS, NUMBERS, WORDS, HEX),
    "REFUSED": st.builds(RefusedName, EPOCHS, NUMBERS, st.just("000005-2-run-ab.arrow")),
    "REFUSED_ROW": st.builds(RefusedRowName, EPOCHS, TARGETS, TIMES),
    "PLAN": st.builds(PlanName, TARGETS, HEX),
    "REPORT": TARGETS,
}
"""Keys of each kind of path."""

WIDER = {"REFUSED_ROW": ["REFUSED"]}
"""Kinds whose pattern contains another kind: a row that a server refused is one of all refused rows."""


def kind(name: str) -> Name[Any]:
    store_type = getattr(paths, name)
    assert isinstance(store_type, Name)
    return store_type


def test_every_kind_of_path_is_tested() -> None:
    kinds = {name for name, value in vars(paths).items() if isinstance(value, Name)}
    assert kinds == {*KEYS, "_IN_SEGMENTS"}


@pytest.mark.parametrize("name", KEYS)
@given(st.data())
@settings(deadline=None, max_examples=30)
def test_formatted_path_is_parsed_into_its_parts(name: str, data: st.DataObject) -> None:
    """Only the parser of its own kind accepts the path, and every store accepts it as a name."""
    key = data.draw(KEYS[name])
    path = kind(name).path(key)
    assert kind(name).parse(path) == key
    parsers = {second for second in KEYS if kind(second).parse(path) is not None}
    assert parsers == {name, *WIDER.get(name, [])}
    assert path.startswith(kind(name).folder)
    assert check_path(path) == path


@given(EPOCHS, NUMBERS, NUMBERS)
@settings(deadline=None)
def test_file_in_a_segment_folder_has_the_folders_epoch(
    epoch: int, partition: int, attempt: int
) -> None:
    path = paths.SEGMENT.path(SegmentName(epoch, partition, attempt, "run", "0" * 32))
    assert paths.segment_epoch(path) == epoch
    assert paths.is_segment_of(path, epoch)
    foreign = f"{paths.segment_folder(epoch)}copy.arrow"
    assert paths.segment_epoch(foreign) == epoch
    assert not paths.is_segment_of(foreign, epoch)


@pytest.mark.parametrize(
    "path",
    [
        "",
        # too short, too long, signed, not ASCII
        "manifests/0-run.json",
        "manifests/0000000000000000000-run.json",
        "manifests/000000000000000000000-run.json",
        "manifests/-0000000000000000001-run.json",
        "manifests/0000000000000000000٣-run.json",
        "state/1.json",
        "state/000000000٣.json",
        "segments/0/000000-0-x.arrow",
        "segments/0000000000000000000٣/000000-0-x.arrow",
        # something before, after or between
        "x/manifests/00000000000000000000-run.json",
        "manifests/x/00000000000000000000-run.json",
        "manifests/00000000000000000000-run.json.bak",
        "manifests/00000000000000000000-run.json\n",
        "manifests/00000000000000000000-runxjson",
        "manifests/00000000000000000000-run.json/x",
        "manifests/.00000000000000000000-run.json",
        "state/0000000001.json\n",
        "segments/00000000000000000000/a/b.arrow",
        "segments/00000000000000000000/",
        "segments/a.arrow",
        "report-.json",
        "report-Cassandra.json",
        # of the right form in another folder
        "state/00000000000000000000-run.json",
        "manifests/00000000000000000000.json",
        "refused/00000000000000000000.json",
    ],
)
def test_foreign_file_name_is_not_parsed(path: str) -> None:
    """An editor, a copy or a later version may leave such files."""
    assert [name for name in KEYS if kind(name).parse(path) is not None] == []
    assert paths.segment_epoch(path) is None


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (paths.segment_folder, 2**63 - 1),
        (paths.refused_folder, 2**63 - 1),
        (lambda epoch: paths.MANIFEST.path(ManifestName(epoch, "run")), 2**63 - 1),
        (paths.STATE.path, 999_999),
        (lambda part: paths.SEGMENT.path(SegmentName(7, part, 0, "run", "0" * 32)), 999_999),
    ],
)
@given(st.data())
@settings(deadline=None, max_examples=30)
def test_paths_sort_in_the_order_of_their_numbers(
    make: Callable[[int], str], most: int, data: st.DataObject
) -> None:
    first, second = data.draw(st.tuples(st.integers(0, most), st.integers(0, most)))
    assert (make(first) < make(second)) == (first < second)


def test_plan_key_with_a_slash_is_refused() -> None:
    assert paths.is_plan_key("9f86d081884c7d659a2feaa0c55ad015")
    assert not any(map(paths.is_plan_key, ("", "../x", "a/b", "a.json", "é")))


def test_paths_are_as_documented() -> None:
    assert paths.STATE.path(12) == "state/0000000012.json"
    assert paths.MANIFEST.path(ManifestName(41, "run")) == f"manifests/{41:020}-run.json"
    segment = SegmentName(41, 5, 2, "run", "0" * 32)
    assert paths.SEGMENT.path(segment) == f"segments/{41:020}/000005-2-run-{'0' * 32}.arrow"
    row = RefusedRowName(41, "orders", 7)
    assert paths.REFUSED_ROW.path(row) == f"refused/{41:020}/1-orders-{7:020}.arrow"
    assert paths.PLAN.path(PlanName("orders", "ab")) == "plans/orders-ab.json"
    assert paths.REPORT.path("orders") == "report-orders.json"
