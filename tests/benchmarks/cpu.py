"""CPU time of processes and of all that they have started, as Linux counts it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class _Stat(NamedTuple):
    parent: int
    own_s: float
    reaped_s: float
    """Of children that have ended and were waited for."""


def of(pid: int) -> float:
    """Return the seconds that one process has used, with its ended children, in user and system mode."""
    stat = _stat(pid)
    return stat.own_s + stat.reaped_s if stat else 0.0


def of_tree(root: int, without: int | None = None) -> float:
    """Return the seconds of a process and all that it has started, directly or not.

    :param without: a child whose whole tree does not count.
    """
    return sum(stat.own_s + stat.reaped_s for stat in _tree(root, without).values())


def below(root: int) -> set[int]:
    """Return the ids of the processes that one has started, directly or not, and that live."""
    return {*_tree(root)} - {root}


def _tree(root: int, without: int | None = None) -> dict[int, _Stat]:
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid))}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    result, remaining = {}, [root]
    while remaining:
        pid = remaining.pop()
        if pid != without and pid in stats:
            result[pid] = stats[pid]
            remaining += children.get(pid, [])
    return result


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _stat(pid: int) -> _Stat | None:
    """Read `/proc/<pid>/stat`, see proc(5); None when the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    user, system, reaped_user, reaped_system = (int(field) / _TICKS for field in fields[11:15])
    return _Stat(int(fields[1]), user + system, reaped_user + reaped_system)
