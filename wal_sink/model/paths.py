"""Formats and parses every path of the log. Each kind of object has one template.

Paths are relative to `<wal.location>/<query id>`. A parser returns None for a path of another kind or of
another program. Numbers have leading zeros, so that paths sorted as text are in the order of the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

K = TypeVar("K")

TARGET_NAME = "[a-z][a-z0-9_]{0,23}"
"""Regular expression of a target's name. The name is a part of paths, options and ledger keys."""

_NUMBER_20 = ("{:020}", "([0-9]{20})", int)
_NUMBER_6 = ("{:06}", "([0-9]{6}|[1-9][0-9]{6,})", int)
_NUMBER = ("{}", "([0-9]+)", int)
_WORD = ("{}", "([0-9A-Za-z_-]+)", str)

_FIELDS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "epoch": _NUMBER_20,
    "us": _NUMBER_20,
    "number": ("{:010}", "([0-9]{10,})", int),
    "partition": _NUMBER_6,
    "task": _NUMBER,
    "rows": _NUMBER,
    "run_id": _WORD,
    "plan": ("{}", "([0-9a-f]+)", str),
    "nonce": ("{}", "([0-9a-f]{32})", str),
    "target": ("{}", f"({TARGET_NAME})", str),
    "file": ("{}", "([^/]+)", str),
}
"""How each field of a template is formatted, its pattern, and how it is parsed."""

_FIELD = re.compile(r"<(\w+)>")


class Name(Generic[K]):
    """The paths of one kind of object: their folder, and the fields in their names.

    :param template: the path, with `<field>` for each field of the key.
    :param key: makes the key from the values of the fields: a tuple, or the value of the only field.
    """

    def __init__(self, template: str, key: Callable[..., K]) -> None:
        self.folder = template[: template.rfind("/", 0, template.find("<") + 1) + 1]
        self._key = key
        fields = _FIELD.findall(template)
        self._types = [_FIELDS[field][2] for field in fields]
        self._format = _FIELD.sub(lambda field: _FIELDS[field[1]][0], template)
        pattern = _FIELD.sub(lambda field: _FIELDS[field[1]][1], re.escape(template))
        self._pattern = re.compile(pattern)

    def path(self, key: K) -> str:
        """Return the path of the object with this key."""
        return self._format.format(*(key if isinstance(key, tuple) else (key,)))

    def parse(self, path: str) -> K | None:
        """Return the key of the object at a path; None if the path is of another kind."""
        match = self._pattern.fullmatch(path)
        if match is None:
            return None
        values = [parse(text) for parse, text in zip(self._types, match.groups(), strict=True)]
        return self._key(*values)


class ManifestName(NamedTuple):
    """Key of a manifest: one run's attempt at an epoch."""

    epoch: int
    run_id: str


class SegmentName(NamedTuple):
    """Key of a segment. Two attempts of one task differ in `run_id` or `nonce`."""

    epoch: int
    partition: int
    task_attempt: int
    run_id: str
    nonce: str
    """32 hexadecimal digits."""


class PlanName(NamedTuple):
    """Key of the plan of one target."""

    target: str
    plan: str


class RefusedRowName(NamedTuple):
    """Key of one row that the server of a target refused."""

    epoch: int
    target: str
    us: int
    """Write timestamp of the row, microseconds since 1970."""


class RefusedName(NamedTuple):
    """Key of a file of refused rows."""

    epoch: int
    rows: int
    file: str
    """File name of the segment, if the tasks refused the rows."""


STATE = Name("state/<number>.json", int)
MANIFEST = Name("manifests/<epoch>-<run_id>.json", ManifestName)
SEGMENT = Name("segments/<epoch>/<partition>-<task>-<run_id>-<nonce>.arrow", SegmentName)
REFUSED = Name("refused/<epoch>/<rows>-<file>", RefusedName)
REFUSED_ROW = Name("refused/<epoch>/1-<target>-<us>.arrow", RefusedRowName)
PLAN = Name("plans/<target>-<plan>.json", PlanName)
REPORT = Name("report-<target>.json", str)
AGREED = "plans/agreed.json"

_IN_SEGMENTS = Name("segments/<epoch>/<file>", lambda epoch, _: int(epoch))


def segment_folder(epoch: int) -> str:
    """Return the folder of an epoch's segments. All attempts at the epoch share it."""
    return f"{SEGMENT.folder}{epoch:020}/"


def refused_folder(epoch: int) -> str:
    """Return the folder of an epoch's refused rows."""
    return f"{REFUSED.folder}{epoch:020}/"


def segment_epoch(path: str) -> int | None:
    """Return the epoch of a file in `segments/`, whatever its name; None for any other path."""
    return _IN_SEGMENTS.parse(path)


def is_segment_of(path: str, epoch: int) -> bool:
    """Return True if a path from a manifest names a segment of this epoch, and no object elsewhere."""
    name = SEGMENT.parse(path)
    return name is not None and name.epoch == epoch


def is_plan_key(key: str) -> bool:
    """Return True if a plan's key is well-formed. Other keys could name an object outside of `plans/`."""
    return PLAN.parse(f"plans/target-{key}.json") is not None
