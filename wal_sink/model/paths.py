"""Every path of the log, in one table: each kind of object has one template, which formats and parses.

Paths are relative to `<wal.location>/<query id>`. A parser gives None for any other path than its own, so a
foreign name is never taken for ours. Names sort as text as what they say sorts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, cast

from wal_sink.model.codec import Record
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.model.plan import Plan
from wal_sink.model.records import (
    Chosen,
    Claim,
    CommitProof,
    Decision,
    FlushedEpoch,
    FlushedWindow,
    FlusherReport,
    Intervention,
    LogIdentity,
    OrphanTombstone,
    Released,
    Stop,
    TargetState,
    Ticket,
    WithoutSink,
)

K = TypeVar("K")
R = TypeVar("R", bound=Record)

TARGET_NAME = "[a-z][a-z0-9_]{0,23}"
"""Pattern of a name of one of several targets: a part of paths, of options, and of keys of ledger rows."""

_NUMBER_20 = ("{:020}", "([0-9]{20})", int)
_NUMBER_6 = ("{:06}", "([0-9]{6}|[1-9][0-9]{6,})", int)
_NUMBER = ("{}", "([0-9]+)", int)
_WORD = ("{}", "([0-9A-Za-z_-]+)", str)

_FIELDS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "epoch": _NUMBER_20,
    "first": _NUMBER_20,
    "last": _NUMBER_20,
    "us": _NUMBER_20,
    "generation": _NUMBER_6,
    "number": _NUMBER_6,
    "partition": _NUMBER_6,
    "task": _NUMBER,
    "rows": _NUMBER,
    "skipped": _NUMBER,
    "length": _NUMBER,
    "run": _WORD,
    "plan": _WORD,
    "segment": _WORD,
    "nonce": ("{}", "([0-9a-f]{32})", str),
    "verb": ("{}", "([a-z]+)", str),
    "target": ("{}", f"({TARGET_NAME})", str),
    "file": ("{}", "([^/]+)", str),
}
"""How each field of a template is formatted, its pattern, and how it is parsed."""

_FIELD = re.compile(r"<(\w+)>")


class Name(Generic[K]):
    """One kind of name: where such objects lie, and what their names say.

    :param template: the path, with `<field>` for each field of the key.
    :param key: makes the key of the fields' values; the key is a tuple of them, or the only one.
    """

    def __init__(self, template: str, key: Callable[..., K]) -> None:
        self.folder = template[: template.find("/") + 1]
        self._key = key
        fields = [_FIELDS[field] for field in _FIELD.findall(template)]
        self._types = [parse for _, _, parse in fields]
        formats, patterns = iter(fields), iter(fields)
        self._format = _FIELD.sub(lambda _: next(formats)[0], template)
        parts = _FIELD.split(template)  # text and field in turn
        self._pattern = re.compile(
            "".join(
                next(patterns)[1] if index % 2 else re.escape(part)
                for index, part in enumerate(parts)
            )
        )

    def path(self, key: K) -> str:
        """Return the path of the object with this key."""
        return self._format.format(*(key if isinstance(key, tuple) else (key,)))

    def parse(self, path: str) -> K | None:
        """Return the key of the object at a path; None for any other path."""
        match = self._pattern.fullmatch(path)
        if match is None:
            return None
        values = [parse(text) for parse, text in zip(self._types, match.groups(), strict=True)]
        return self._key(*values)


class Kind(Name[K], Generic[R, K]):
    """A kind of record, whose objects are created once and whole."""

    def __init__(self, template: str, key: Callable[..., K], record: type[R]) -> None:
        super().__init__(template, key)
        self.record = record
        # Of thousands of manifests that wait, few are new when they are listed again.
        self.parse = functools.lru_cache(maxsize=1 << 14)(super().parse)  # type: ignore[method-assign]


class SegmentName(NamedTuple):
    """What the name of a segment says; `run_id` and `nonce` keep attempts of one task apart."""

    epoch: int
    partition: int
    task_attempt: int
    run_id: str
    nonce: str
    """32 hexadecimal digits."""


class DecisionName(NamedTuple):
    """Which decision about an epoch it is: `number` came before."""

    epoch: int
    number: int


class WindowName(NamedTuple):
    """What the name of a window's records says; the last one of a listing has the newest record."""

    last: int
    first: int
    us: int
    """The write timestamp of the window's first row. A window that is begun anew after a rewind has a later
    one, so no name stands for two windows."""

    def covers(self, epoch: int) -> bool:
        """Whether the window has an epoch."""
        return self.first <= epoch <= self.last

    @property
    def epochs(self) -> range:
        """The epochs of the window."""
        return range(self.first, self.last + 1)


class StateName(NamedTuple):
    """Which state of a target it is: `number` came before."""

    target: str
    number: int


class InterventionName(NamedTuple):
    """What an operator did, and when, microseconds since 1970."""

    verb: str
    at_us: int


class EntryName(NamedTuple):
    """All that a listing has to say of rows in quarantine."""

    epoch: int
    us: int
    """The write timestamp of the first row."""
    rows: int
    segment: str
    """File name of the segment that they come from, without its suffix."""


class ReleasedName(NamedTuple):
    """Which rows have left the quarantine: of an entry, so many rows behind the first ones."""

    epoch: int
    us: int
    rows: int
    segment: str
    first: int
    """Counted from 0."""
    length: int

    @property
    def entry(self) -> EntryName:
        """The entry that they were in."""
        return EntryName(*self[:4])


LOG = "log.json"
FLUSHER = "flusher.json"

IDENTITY = Kind(LOG, tuple[()], LogIdentity)
REPORT = Kind(FLUSHER, tuple[()], FlusherReport)
PLAN = Kind("plans/<plan>.json", str, Plan)
TICKET = Kind("tickets/<run>.json", str, Ticket)
STOP = Kind("stops/<run>.json", str, Stop)
CLAIM = Kind("runs/<generation>.json", int, Claim)
MANIFEST = Kind("manifests/<epoch>-<generation>.json", Attempt, Manifest)
PROOF = Kind("proofs/<epoch>-<generation>.json", Attempt, CommitProof)
TOMBSTONE = Kind("tombstones/<epoch>-<generation>.json", Attempt, OrphanTombstone)
WITHOUT_SINK = Kind("without_sink/<epoch>.json", int, WithoutSink)
CHOICE = Kind("choices/<epoch>.json", int, Chosen)
TARGET_STATE = Kind("targets/<target>/<number>.json", StateName, TargetState)
FLUSHED = Kind("flushed/<last>-<first>-<us>.json", WindowName, FlushedWindow)
RETAINED_MANIFEST = Kind("retained/<epoch>-<generation>.json", Attempt, Manifest)
RETAINED_RECORD = Kind("retained/<epoch>.json", int, FlushedEpoch)
DECISION = Kind("decisions/<epoch>-<number>.json", DecisionName, Decision)
INTERVENTION = Kind("interventions/<verb>-<us>.json", InterventionName, Intervention)
RELEASED = Kind(
    "quarantine/<epoch>-<us>-<rows>-<segment>.released-<skipped>-<length>.json",
    ReleasedName,
    Released,
)

QUARANTINED = Name("quarantine/<epoch>-<us>-<rows>-<segment>.arrow", EntryName)
SEGMENT = Name("segments/<epoch>/<partition>-<task>-<run>-<nonce>.arrow", SegmentName)
_IN_SEGMENTS = Name("segments/<epoch>/<file>.arrow", lambda epoch, _: cast(int, epoch))

FOLDERS = tuple(
    dict.fromkeys(
        kind.folder
        for kind in (
            *(CLAIM, TICKET, SEGMENT, MANIFEST, PROOF, TOMBSTONE, WITHOUT_SINK, CHOICE, DECISION),
            *(INTERVENTION, QUARANTINED, RETAINED_RECORD, FLUSHED),
        )
    )
)
"""Those whose listings decide something, but for the targets' states. What a flusher deletes comes before the
record that says so."""

ASIDE = "aside/"
_LOST = "not_flushed/"

_OWN = (
    *(kind.folder for kind in (PLAN, FLUSHED, DECISION, INTERVENTION, QUARANTINED)),
    ASIDE,
)
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


def target_states(target: str) -> str:
    """Folder of the states of one of several targets."""
    return f"{TARGET_STATE.folder}{target}/"


def segment_folder(epoch: int) -> str:
    """Folder of an epoch's segments, of all attempts."""
    return f"{SEGMENT.folder}{epoch:020}/"


def segment_epoch(path: str) -> int | None:
    """Return the epoch of a file in `segments/`, also of one with a foreign name; None for any other path."""
    return _IN_SEGMENTS.parse(path)


def segment_run(path: str) -> str | None:
    """Return the run that wrote a segment; None for any other path."""
    name = SEGMENT.parse(path)
    return name and name.run_id


def is_segment_of(path: str, epoch: int) -> bool:
    """Whether a path that was read somewhere is that of a segment of this epoch, and of nothing else."""
    name = SEGMENT.parse(path)
    return name is not None and name.epoch == epoch


def is_plan_key(key: str) -> bool:
    """Whether a key that was read somewhere names a plan, and no other place."""
    return PLAN.parse(PLAN.path(key)) == key


def retained_epoch(path: str) -> int | None:
    """Return the epoch of which an object of `retained/` is; None for any other path."""
    attempt = RETAINED_MANIFEST.parse(path)
    return RETAINED_RECORD.parse(path) if attempt is None else attempt.epoch


def quarantined(epoch: int, us: int, rows: int, segment: str) -> str:
    """Path of rows in quarantine.

    :param us: the write timestamp of the first one.
    :param segment: path of the segment that they come from.
    """
    stem = segment.rpartition("/")[2].removesuffix(".arrow")
    return QUARANTINED.path(EntryName(epoch, us, rows, stem))


def aside(us: int, path: str, *, lost: bool = False) -> str:
    """Path of the second name of an object that is flushed again after a rewind, or of the proof of it.

    :param us: the highest write timestamp used before the rewind.
    :param lost: it is the manifest of an attempt that was not flushed.
    """
    return f"{ASIDE}{us:020}/{_LOST if lost else ''}{path}"


class AsideName(NamedTuple):
    """What a second name says."""

    us: int
    """The highest write timestamp used before the rewind."""
    epoch: int
    path: str
    """The first name."""
    lost: bool
    """Whether it is the manifest of an attempt that was not flushed."""


_ASIDE = re.compile(
    rf"{ASIDE}([0-9]{{20}})/({_LOST})?"
    rf"((?:{MANIFEST.folder}|{SEGMENT.folder}|{PROOF.folder})([0-9]{{20}})[-/].+)"
)


def parse_aside(path: str) -> AsideName | None:
    """Return what a second name says; None for any other path."""
    match = _ASIDE.fullmatch(path)
    if match is None:
        return None
    us, lost, first_name, epoch = match.groups()
    return AsideName(int(us), int(epoch), first_name, bool(lost))
