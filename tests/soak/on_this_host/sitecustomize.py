"""Makes the host a bad one for Python: its clock is wrong, and listings of local folders are old.

Python imports this module by itself, in every process whose `PYTHONPATH` has this folder. The clock is ahead
by the seconds in a file, read once a second. A listing is up to three seconds old, as on a network mount that
caches. Such a host asks its server again after a change of its own: where a file is being made, the listing
is fresh.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CACHED_S = 3.0
_READ_EVERY_S = 1.0

_true_ns = time.time_ns
_ahead = [0.0, 0]
"""When the file was read last, and what it said."""


def _time_ns() -> int:
    now_s = time.monotonic()
    if now_s - _ahead[0] > _READ_EVERY_S:
        with contextlib.suppress(OSError, ValueError):
            _ahead[:] = now_s, int(Path(os.environ["FAKETIME_TIMESTAMP_FILE"]).read_text())
    return _true_ns() + int(_ahead[1]) * 1_000_000_000


def _time() -> float:
    return _time_ns() / 1_000_000_000


if "FAKETIME_TIMESTAMP_FILE" in os.environ:
    time.time_ns, time.time = _time_ns, _time

with contextlib.suppress(ImportError):  # a Python that has nothing to do with the sink
    from state_backends.local import LocalBackend

    _ask = LocalBackend._files
    _listed: dict[tuple[str, str], tuple[float, list[tuple[str, str]]]] = {}

    def _count_old() -> None:
        """Make the file that counts the listings that were old a byte longer."""
        beside = Path(os.environ["FAKETIME_TIMESTAMP_FILE"])
        with beside.with_name("old-listings").open("ab") as count:
            count.write(b".")

    def _files(self: LocalBackend, prefix: str) -> Iterator[tuple[str, str]]:
        key, found = (self.url, prefix), list(_ask(self, prefix))
        now_s = time.monotonic()
        then_s, then = _listed.get(key, (now_s - _CACHED_S, found))
        being_made = any(name.startswith(".") for _, name in found)
        if being_made or now_s - then_s >= _CACHED_S:
            _listed[key] = (now_s, found)
            return iter(found)
        if then != found:
            _count_old()
        return iter(then)

    LocalBackend._files = _files  # type: ignore[method-assign]

    def _forgets(name: str) -> None:
        """Let a change by this process end what it has cached."""
        change = getattr(LocalBackend, name)

        @functools.wraps(change)
        def changed(*args: Any, **named: Any) -> Any:
            try:
                return change(*args, **named)
            finally:
                _listed.clear()

        setattr(LocalBackend, name, changed)

    for _name in ("create", "replace", "delete"):
        _forgets(_name)
