"""Makes and parses every path of the log. Paths are relative to `<wal.location>/<query id>`.

A parser gives None for any other path than its own, so that a foreign name is never taken for ours.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TypeVar

from wal_sink.model.manifest import Attempt

T = TypeVar("T")

LOG = "log.json"
FLUSHER = "flusher.json"
PLANS = "plans/"
TICKETS = "tickets/"
STOPS = "stops/"
RUNS = "runs/"
MANIFESTS = "manifests/"
KEPT = "kept/"
WITHOUT_SINK = "without_sink/"
SWEPT = "swept/"
CHOSEN = "chosen/"
TARGETS = "targets/"
SEGMENTS = "segments/"
FLUSHED = "flushed/"
RETAINED = "retained/"
DECISIONS = "decisions/"
ASIDE = "aside/"
QUARANTINE = "quarantine/"
_LOST = "not_flushed/"

_OWN = (PLANS, FLUSHED, DECISIONS, ASIDE, QUARANTINE)
"""Folders in which each of several targets has a folder of its own."""


def of_target(target: str, path: str) -> str:
    """Return where an object lies in a log of several targets: each has its own folder of records, say.

    :param target: the name of the one that asks; empty where the log has one target.
    :param path: of an object or a folder, as in a log of one target; or as this function has returned it.
    """
    if not target:
        return path
    if path == FLUSHER:
        return f"flusher-{target}.json"
    for folder in _OWN:
        own = f"{folder}{target}/"
        if path.startswith(folder) and not path.startswith(own):
            return own + path.removeprefix(folder)
    return path


def plan(key: str) -> str:
    """Path of a plan."""
    return f"{PLANS}{key}.json"


def ticket(run_id: str) -> str:
    """Path of a run's ticket."""
    return f"{TICKETS}{run_id}.json"


def stop(run_id: str) -> str:
    """Path of the note that a run is told to stop."""
    return f"{STOPS}{run_id}.json"


def run(generation: int) -> str:
    """Path of the claim of a generation."""
    return f"{RUNS}{generation:06}.json"


def manifest(attempt: Attempt) -> str:
    """Path of a manifest."""
    return f"{MANIFESTS}{attempt.epoch:020}-{attempt.generation:06}.json"


def kept(attempt: Attempt) -> str:
    """Path of the note that Spark kept an attempt."""
    return f"{KEPT}{attempt.epoch:020}-{attempt.generation:06}.json"


def without_sink(epoch: int) -> str:
    """Path of the note that Spark made an epoch, or passed over it, without a sink."""
    return f"{WITHOUT_SINK}{epoch:020}.json"


def swept(attempt: Attempt) -> str:
    """Path of the note that the segments of an attempt were deleted before it was published."""
    return f"{SWEPT}{attempt.epoch:020}-{attempt.generation:06}.json"


def chosen(epoch: int) -> str:
    """Path of what was decided for all targets about an epoch."""
    return f"{CHOSEN}{epoch:020}.json"


def target_states(target: str) -> str:
    """Folder of the states of one of several targets."""
    return f"{TARGETS}{target}/"


def target_state(target: str, number: int) -> str:
    """Path of a state of a target; `number` states came before."""
    return f"{target_states(target)}{number:06}.json"


def segment_folder(epoch: int) -> str:
    """Folder of an epoch's segments, of all attempts."""
    return f"{SEGMENTS}{epoch:020}/"


def segment(epoch: int, partition: int, task_attempt: int, unique: str) -> str:
    """Path of a segment; `unique` keeps attempts of one task apart, whatever Spark numbers them."""
    return f"{segment_folder(epoch)}{partition:06}-{task_attempt}-{unique}.arrow"


def unique_in_run(run_id: str, nonce: str) -> str:
    """Return what makes a segment's path unique, and tells which run has written it.

    :param nonce: 32 hexadecimal digits.
    """
    return f"{run_id}-{nonce}"


def flushed(epoch: int) -> str:
    """Path of the record of a flushed epoch, which is alone in its window, or the last one there."""
    return f"{FLUSHED}{epoch:020}.json"


def flushed_window(first: int, last: int, us: int) -> str:
    """Path of the records of a flushed window, but for its last epoch, which is `last` + 1.

    :param us: the write timestamp of the window's first row. A window that is begun anew after a rewind has a
        later one, so no name stands for two windows.
    """
    return f"{FLUSHED}{first:020}-{last:020}-{us:020}.json"


def retained_manifest(attempt: Attempt) -> str:
    """Path of the manifest of a flushed epoch while `wal.retention` keeps it."""
    return f"{RETAINED}{attempt.epoch:020}-{attempt.generation:06}.json"


def retained_record(epoch: int) -> str:
    """Path of the record of a flushed epoch while `wal.retention` keeps it."""
    return f"{RETAINED}{epoch:020}.json"


def decision(epoch: int, number: int = 0) -> str:
    """Path of an operator's decision to give an epoch up; `number` decisions about it came before."""
    return f"{DECISIONS}{epoch:020}{f'-{number}' if number else ''}.json"


def intervention(verb: str, at_us: int) -> str:
    """Path of the record of what an operator did to the ledger or to names; `at_us` since 1970."""
    return f"{DECISIONS}{verb}-{at_us:020}.json"


def aside(us: int, path: str, *, lost: bool = False) -> str:
    """Path of the second name of an object that is flushed again after a rewind.

    :param us: the highest write timestamp used before the rewind.
    :param lost: it is the manifest of an attempt that was not flushed.
    """
    return f"{ASIDE}{us:020}/{_LOST if lost else ''}{path}"


def quarantined(epoch: int, us: int, rows: int, segment: str) -> str:
    """Path of rows in quarantine: all that a listing has to tell of them is in the name.

    :param us: the write timestamp of the first one.
    :param segment: path of the segment that they come from.
    """
    stem = segment.rpartition("/")[2].removesuffix(".arrow")
    return f"{QUARANTINE}{epoch:020}-{us:020}-{rows}-{stem}.arrow"


def released(entry: str, first: int, rows: int) -> str:
    """Path of the note that rows have left the quarantine.

    :param entry: path of what `quarantined` returned.
    :param first: of the rows, counted from 0.
    """
    return f"{entry.removesuffix('.arrow')}.released-{first}-{rows}.json"


def _parser(pattern: str, make: Callable[..., T]) -> Callable[[str], T | None]:
    """Return a parser of the paths that the whole pattern matches; `make` gets the pattern's groups."""
    compiled = re.compile(pattern)

    def parse(path: str) -> T | None:
        match = compiled.fullmatch(path)
        return make(*match.groups()) if match else None

    return parse


def _attempt(epoch: str, generation: str) -> Attempt:
    return Attempt(int(epoch), int(generation))


_EPOCH = "([0-9]{20})"
_GENERATION = "([0-9]{6}|[1-9][0-9]{6,})"

parse_run = _parser(rf"{RUNS}{_GENERATION}\.json", int)
"""Generation of a claim."""

parse_ticket = _parser(rf"{TICKETS}([0-9A-Za-z_-]+)\.json", str)
"""Run that has a ticket."""

parse_plan = _parser(rf"{PLANS}([^/]+)\.json", str)
"""Key of a plan."""

parse_manifest = functools.lru_cache(maxsize=1 << 14)(
    _parser(rf"{MANIFESTS}{_EPOCH}-{_GENERATION}\.json", _attempt)
)
"""Attempt that a manifest publishes; of thousands that wait, few are new when they are listed again."""

parse_kept = _parser(rf"{KEPT}{_EPOCH}-{_GENERATION}\.json", _attempt)
"""Attempt that Spark kept."""

parse_swept = _parser(rf"{SWEPT}{_EPOCH}-{_GENERATION}\.json", _attempt)
"""Attempt whose segments were deleted before it was published."""

parse_chosen = _parser(rf"{CHOSEN}{_EPOCH}\.json", int)
"""Epoch of what was decided for all targets."""

TARGET_NAME = "[a-z][a-z0-9_]{0,23}"
"""Pattern of a name of one of several targets: a part of paths, of options, and of keys of ledger rows."""

parse_target_state = _parser(
    rf"{TARGETS}({TARGET_NAME})/([0-9]{{6}})\.json", lambda target, number: (target, int(number))
)
"""Target and number of a state."""

parse_segment_run = _parser(
    rf"{SEGMENTS}[0-9]{{20}}/[0-9]{{6,}}-[0-9]+-([0-9A-Za-z_-]+)-[0-9a-f]{{32}}\.arrow", str
)
"""Run that wrote a segment; version 0.1.0 did not name it."""

parse_segment_nonce = _parser(
    rf"{SEGMENTS}[0-9]{{20}}/[0-9]{{6,}}-[0-9]+-[0-9A-Za-z_-]+-([0-9a-f]{{32}})\.arrow", str
)
"""Nonce of a segment that tells its run."""

parse_segment_epoch = _parser(rf"{SEGMENTS}{_EPOCH}/[^/]+\.arrow", int)
"""Epoch of a segment."""

parse_segment_task = _parser(
    rf"{SEGMENTS}[0-9]{{20}}/([0-9]{{6,}})-([0-9]+)-[^/]+\.arrow",
    lambda partition, task_attempt: (int(partition), int(task_attempt)),
)
"""Spark partition and task attempt that wrote a segment."""

parse_flushed = _parser(rf"{FLUSHED}{_EPOCH}\.json", int)
"""Epoch of a record that is an object of its own: that of the last epoch of its window."""

parse_flushed_window = _parser(
    rf"{FLUSHED}{_EPOCH}-{_EPOCH}-[0-9]{{20}}\.json", lambda first, last: (int(first), int(last))
)
"""First and last epoch of the records of a window that are in one object."""

parse_retained_manifest = _parser(rf"{RETAINED}{_EPOCH}-{_GENERATION}\.json", _attempt)
"""Attempt whose manifest is retained."""

parse_retained = _parser(rf"{RETAINED}{_EPOCH}(?:-[0-9]{{6,}})?\.json", int)
"""Epoch of which something is retained."""

parse_decision = _parser(rf"{DECISIONS}{_EPOCH}(?:-[1-9][0-9]*)?\.json", int)
"""Epoch that an operator has given up."""

parse_without_sink = _parser(rf"{WITHOUT_SINK}{_EPOCH}\.json", int)
"""Epoch that Spark made, or passed over, without a sink."""

parse_intervention = _parser(rf"{DECISIONS}([a-z]+)-[0-9]{{20}}\.json", str)
"""Verb of an operator's intervention."""

parse_aside = _parser(rf"{ASIDE}[0-9]{{20}}/((?:{MANIFESTS}|{SEGMENTS}).+)", str)
"""First name of an object that can be brought back."""

parse_aside_name = _parser(
    rf"{ASIDE}([0-9]{{20}})/(?:{_LOST})?(?:{MANIFESTS}|{SEGMENTS}){_EPOCH}[-/].+",
    lambda us, epoch: (int(us), int(epoch)),
)
"""Highest write timestamp used before the rewind, and epoch."""

_ENTRY = rf"{QUARANTINE}{_EPOCH}-([0-9]{{20}})-([0-9]+)-[0-9A-Za-z_-]+"

parse_quarantined = _parser(
    rf"{_ENTRY}\.arrow", lambda epoch, us, rows: (int(epoch), int(us), int(rows))
)
"""Epoch, timestamp of the first row, and number of rows in quarantine."""

parse_released = _parser(
    rf"({_ENTRY})\.released-([0-9]+)-([0-9]+)\.json",
    lambda entry, _epoch, _us, _rows, first, rows: (f"{entry}.arrow", int(first), int(rows)),
)
"""Path of rows in quarantine, and which of them have left it: from the first, how many."""

_parse_safe_segment_epoch = _parser(rf"{SEGMENTS}{_EPOCH}/[0-9A-Za-z_-]+\.arrow", int)


def is_segment_of(path: str, epoch: int) -> bool:
    """Whether a path that was read somewhere is that of a segment of this epoch, and of nothing else."""
    return _parse_safe_segment_epoch(path) == epoch


def is_plan_key(key: str) -> bool:
    """Whether a key that was read somewhere names a plan, and no other place."""
    return re.fullmatch(r"[0-9A-Za-z_-]+", key) is not None
