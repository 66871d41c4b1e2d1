"""A model of rule `state`: the state is the newest `state/<n>`, and changes only by creating n + 1 from n.

The newest 100 states stay; here `keep` states. So a process that pauses while others make this number of
changes may create a name a second time. The state that it creates is void. The model shows what a process
must read so that it never counts a void state of its own as a change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Content = tuple[int, int]
"""Identifies a state: its author, and how many states the author had made before."""


class Numbers(NamedTuple):
    """The setting that is explored."""

    changes: tuple[int, ...] = (3, 1, 1)
    """How many states each process creates."""
    keep: int = 1
    base: str = "content"
    """What a process compares after it has created n + 1: the `content` of n, or only that n `exists`; empty
    for nothing."""


class Process(NamedTuple):
    """One process that changes the state repeatedly."""

    at: str = "list"
    n: int = 0
    content: Content = (-1, 0)
    made: int = 0


class Store(NamedTuple):
    """The folder `state/`, and number and content of the last change."""

    files: frozenset[tuple[int, Content]]
    n: int
    content: Content
    processes: tuple[Process, ...]


LIST: dict[str, Any] = {"at": "list", "n": 0, "content": (-1, 0)}


def steps(numbers: Numbers, store: Store) -> Iterator[Store]:
    """Yield the store after each step of each process."""
    files = dict(store.files)
    for p, me in enumerate(store.processes):

        def go(base: Store = store, p: int = p, me: Process = me, **changes: Any) -> Store:
            new = me._replace(**changes)
            return base._replace(processes=(*base.processes[:p], new, *base.processes[p + 1 :]))

        if me.at == "list":
            n = max(files)
            yield go(at="ready", n=n, content=files[n])
        elif me.at == "ready" and me.made < numbers.changes[p]:
            if me.n + 1 in files:
                yield go(**LIST)
                continue
            new = (p, me.made)
            base = store._replace(files=store.files | {(me.n + 1, new)})
            if (me.n, me.content) == (store.n, store.content):
                base = base._replace(n=me.n + 1, content=new)
            yield go(base, at="made", made=me.made + 1)
        elif me.at == "made":
            present = {"content": files.get(me.n) == me.content, "exists": me.n in files, "": True}
            if present[numbers.base]:
                yield go(at="claims", n=me.n + 1, content=(p, me.made - 1))
            else:
                yield go(**LIST)
        elif me.at == "claims":
            old = [n for n in files if n <= me.n - numbers.keep]
            if old:
                oldest = min(old)
                rest = frozenset(item for item in store.files if item[0] != oldest)
                yield go(store._replace(files=rest))
            if me.made < numbers.changes[p]:
                yield go(at="ready")


def explore(numbers: Numbers) -> tuple[int, str]:
    """Visit every state; return their number, and the broken rule, empty for none."""
    first = Store(frozenset({(0, (-1, 0))}), 0, (-1, 0), (Process(),) * len(numbers.changes))
    level, current, real = [(first, frozenset({(0, (-1, 0))}))], {hash(first)}, frozenset[object]()
    while level:
        following = []
        for store, real in level:
            for after in steps(numbers, store):
                known = real | {(after.n, after.content)}
                for process in after.processes:
                    if process.at == "claims" and (process.n, process.content) not in known:
                        return len(current), "a change that is void counts"
                code = hash((after, known))
                if code not in current:
                    current.add(code)
                    following.append((after, known))
        level = following
    return len(current), ""
