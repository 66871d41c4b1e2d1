"""A model of rule `state`: the state is the newest `state/<n>`, and changes only by creating n + 1 from n.

The newest 100 states stay, here `keep`. So a name can be created a second time, by a process that was paused
while others made that many changes: what it creates is void. The model shows what a process has to read, so
that it never takes a void state for the newest one, and never takes its own void state for a change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Content = tuple[int, int]
"""What tells one state from all others: its author, and how many that has made."""


class Numbers(NamedTuple):
    """What is explored."""

    changes: tuple[int, ...] = (3, 1, 1)
    """How many states each process creates."""
    keep: int = 1
    base: str = "content"
    """After n + 1 is created, n is read again: its `content` is compared, or it `exists`, or nothing."""
    begin: bool = True
    """A process that goes forward by names reads again the state from which it began, at the end."""


class Process(NamedTuple):
    """One process that changes the state, again and again."""

    at: str = "list"
    n: int = 0
    content: Content = (-1, 0)
    begin: int = 0
    begun: Content = (-1, 0)
    made: int = 0


class Store(NamedTuple):
    """The folder `state/`, and the change that was made last."""

    files: frozenset[tuple[int, Content]]
    n: int
    content: Content
    processes: tuple[Process, ...]


NONE: dict[str, Any] = {"begin": 0, "begun": (-1, 0)}
LIST: dict[str, Any] = {"at": "list", "n": 0, "content": (-1, 0), **NONE}


def steps(numbers: Numbers, store: Store) -> Iterator[Store]:
    """Yield the store after each step of each process; None stands for a broken rule."""
    files = dict(store.files)
    for p, me in enumerate(store.processes):

        def go(base: Store = store, p: int = p, me: Process = me, **changes: Any) -> Store:
            new = me._replace(**changes)
            return base._replace(processes=(*base.processes[:p], new, *base.processes[p + 1 :]))

        if me.at == "list":
            n = max(files)
            yield go(at="ready", n=n, content=files[n])
        elif me.at == "forward":
            if me.n + 1 in files:
                yield go(n=me.n + 1, content=files[me.n + 1])
            elif numbers.begin:
                yield go(at="begin")
            else:
                yield go(at="ready", **NONE)
        elif me.at == "begin":
            if files.get(me.begin) == me.begun:
                yield go(at="ready", **NONE)
            else:
                yield go(**LIST)
        elif me.at == "ready" and me.made < numbers.changes[p]:
            if me.n + 1 in files:
                yield go(at="forward", begin=me.n, begun=me.content)
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
                yield go(at="forward", begin=me.n, begun=me.content)


def explore(numbers: Numbers) -> tuple[int, str]:
    """Visit every state; return how many, and what broke."""
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
