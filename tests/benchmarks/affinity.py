"""Which processors a process may use, as taskset sets it: for its threads, and what they start later."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def pinned(pid: int, processors: set[int]) -> Iterator[None]:
    """Keep a process on some processors for as long as the block runs."""
    earlier = os.sched_getaffinity(pid)
    _pin(pid, processors)
    try:
        yield
    finally:
        _pin(pid, earlier)


def _pin(pid: int, processors: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), processors)
