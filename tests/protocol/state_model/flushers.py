"""The steps of a flusher, each with one access to a store: one pass, and the trim."""

from __future__ import annotations

from typing import Any

from tests.protocol.state_model.conditions import NAMES, Protocol
from tests.protocol.state_model.runs import Steps, run_of
from tests.protocol.state_model.world import (
    BrokenPromise,
    Flusher,
    Ledger,
    World,
    log_of,
    put,
    top,
    with_log,
)
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerRow
from wal_sink.protocol.flush_decisions import Step


def flush_steps(protocol: Protocol, world: World, f: int) -> Steps:
    """Yield the next steps of a flusher: a text, and the world after the step."""
    me = world.flushers[f]
    if world.logs[me.place] is None:
        return
    if me.at == "idle":
        yield from _begin(protocol, world, f)
    elif me.at in ("cells", "entry", "claim", "finish"):
        yield from _write(protocol, world, f)
    elif me.at == "delete":
        rest = me._replace(names=me.names[1:]) if me.names[1:] else Flusher(me.place)
        yield (
            f"flusher {f} deletes {me.names[0]}",
            _went(delete(protocol, world, me.place, me.names[0]), f, rest),
        )
    else:
        yield from _pass(protocol, world, f)


def _went(world: World, f: int, me: Flusher) -> World:
    flushers = put(world.flushers, f, me)
    if len(flushers) > 1:  # flushers are interchangeable
        flushers = tuple(sorted(flushers, key=hash))
    return world._replace(flushers=flushers)


def _begin(protocol: Protocol, world: World, f: int) -> Steps:
    """Read the state, for a pass or for a trim."""
    setting, me = protocol.setting, world.flushers[f]
    log = log_of(world, me.place)
    if log.st < 0:
        return
    state = protocol.state(log.st)
    if state.checkpoint != f"place {me.place}" and "identity" not in protocol.off:
        return  # WrongOwner
    for t in range(setting.targets):
        if state.target(NAMES[t]) is None:
            continue
        row = me.row if me.t == t else None
        if "state_first" in protocol.off:
            new = Flusher(me.place, "reversed", t, top(log.com), row=row)
            yield f"flusher {f} reads commits/ (target {t})", _went(world, f, new)
        else:
            new = Flusher(me.place, "commits", t, st=log.st, row=row)
            yield f"flusher {f} reads the state (target {t})", _went(world, f, new)
    if setting.trim:
        new_state = protocol.ask(protocol.trim, log.st, world.now)
        if new_state is not None:
            new = Flusher(me.place, "raise", st=log.st, new=new_state)
            yield f"flusher {f} reads the state to trim", _went(world, f, new)
        elif garbage(protocol, world, me.place, log.st):
            new = Flusher(me.place, "list", st=log.st)
            yield f"flusher {f} reads the state to delete", _went(world, f, new)


def _pass(protocol: Protocol, world: World, f: int) -> Steps:
    """Continue a pass, up to the first row that is written."""
    me = world.flushers[f]
    log, at, t = log_of(world, me.place), me.at, me.t
    idle = Flusher(me.place, t=t, row=me.row if protocol.setting.cached else None)
    if log.st < 0:
        yield f"flusher {f}: the log is gone", _went(world, f, Flusher(me.place))
    elif at == "reversed":
        new = protocol.ask(protocol.settle, log.st, me.com)
        after = log.st if new is None else new
        base = with_log(world, me.place, st=after) if new is not None else world
        yield (
            f"flusher {f} settles up to {me.com}",
            _went(base, f, me._replace(at="ledger", st=after, same=True)),
        )
    elif at == "commits":
        com = top(log.com)
        new = None if "settle" in protocol.off else protocol.ask(protocol.settle, me.st, com)
        nxt = me._replace(at=_read_next(protocol, me.st, me), com=com)
        if new is not None:
            nxt = me._replace(at="settle", com=com, new=new)
        yield f"flusher {f} reads commits/: {com}", _went(world, f, nxt)
    elif at in ("settle", "change", "raise"):
        yield from _change(protocol, world, f, idle)
    elif at == "list":
        names = garbage(protocol, world, me.place, me.st)
        new = me._replace(at="delete", st=-1, same=True, new=None, names=names)
        yield (
            f"flusher {f} lists {len(names)} objects to delete",
            _went(world, f, new if names else Flusher(me.place)),
        )
    elif at == "ledger":
        row = world.ledgers[t].row
        yield (
            f"flusher {f} reads the ledger: {brief(row)}",
            _went(world, f, me._replace(at="decide", row=row)),
        )
    elif at == "decide":
        yield from _decide(protocol, world, f, idle)
    elif at == "row":
        ledger = world.ledgers[t]
        ok = ledger.row == me.row
        base = (
            world._replace(ledgers=put(world.ledgers, t, ledger._replace(row=me.new)))
            if ok
            else world
        )
        yield f"flusher {f} sets the row to {me.new.epoch}: {ok}", _went(base, f, Flusher(me.place))


def _change(protocol: Protocol, world: World, f: int, idle: Flusher) -> Steps:
    """Try a transition once, from the state that was read."""
    me = world.flushers[f]
    log, new = log_of(world, me.place), me.new
    if me.at == "settle" and not me.same and "exact_settle" in protocol.off:
        new = protocol.ask(protocol.settle, log.st, me.com)
    elif not me.same and "state" not in protocol.off:
        new = None
    if new is None:
        yield f"flusher {f}: the state has moved", _went(world, f, idle)
        return
    if me.at == "raise" and "says_first" in protocol.off:
        base, nxt = world, me._replace(at="list", st=new, new=None)
    else:
        base = with_log(world, me.place, st=new)
        after = "list" if me.at == "raise" else _read_next(protocol, new, me)
        nxt = idle
        if me.at != "change":
            nxt = base.flushers[f]._replace(at=after, st=new, same=True, new=None)
    yield f"flusher {f} makes the state: {me.at}", _went(base, f, nxt)


def _read_next(protocol: Protocol, st: int, me: Flusher) -> str:
    """Return the step after `commits/`: read the ledger row, or decide if a kept row is still valid."""
    return "decide" if protocol.ask(protocol.may_keep, st, me.t, me.row) else "ledger"


def _decide(protocol: Protocol, world: World, f: int, idle: Flusher) -> Steps:
    """Decide from what was read, and prepare the next state or ledger row."""
    me = world.flushers[f]
    log, t = log_of(world, me.place), me.t
    decision = protocol.ask(protocol.decide, me.st, t, me.com, me.row, log.man)
    step, row, error = decision.step, decision.row, ""
    new: Any = None
    if step is Step.WAIT:
        error = decision.warning
    elif step in (Step.MARK, Step.WENT_BACK):
        what = protocol.mark if step is Step.MARK else protocol.went_back
        new = protocol.ask(what, me.st, t, row, log.man, world.now)
        error = new if isinstance(new, str) else ""
    if error:
        if me.same or "confirm" in protocol.off:
            if not world.back:
                raise BrokenPromise(f"P3: an error without a cause: {error}")
            yield f"flusher {f}: {error}", _went(world, f, Flusher(me.place))
        else:
            yield (
                f"flusher {f}: {error}, but the state has moved",
                _went(world, f, Flusher(me.place)),
            )
    elif step is Step.WAIT:
        yield f"flusher {f} has nothing to flush", _went(world, f, idle)
    elif step is Step.SET_ROW:
        nxt = Flusher(me.place, "row", t, row=me.row, new=row)
        yield f"flusher {f} is about to set the row to {row.epoch}", _went(world, f, nxt)
    elif step is Step.FLUSH:
        chain = protocol.chain(protocol.state(me.st), log.man)
        win = tuple((n, run_of(chain[n].manifest)) for n in decision.epochs)
        after = protocol.ask(protocol.mark, me.st, t, row, log.man, world.now)
        kind = protocol.setting.kind
        at = {"cells": "cells", "tx": "finish", "lists": "claim"}[kind]
        yield (
            f"flusher {f} takes {win}",
            _went(world, f, me._replace(at=at, com=-1, new=row, win=win, after=after)),
        )
    else:
        nxt = Flusher(me.place, "change", t, st=me.st, same=me.same, row=me.row, new=new)
        yield f"flusher {f} sees the ledger at {row.epoch}", _went(world, f, nxt)


def _write(protocol: Protocol, world: World, f: int) -> Steps:
    """Write cells one by one, or all with the ledger row; then finish."""
    setting, me = protocol.setting, world.flushers[f]
    log, t = log_of(world, me.place), me.t
    ledger = world.ledgers[t]
    gone = [n for n, r in me.win if (n, r) not in log.seg]
    if gone:
        if me.same and not world.back:
            raise BrokenPromise("P3: an error without a cause: MissingSegment")
        yield f"flusher {f}: MissingSegment of {gone[0]}", _went(world, f, Flusher(me.place))
        return
    if me.at == "claim":
        row: Any = protocol.ask(protocol.claim_sending, ledger.row)
        ok = ledger.row == me.row and not isinstance(row, str) and row.sending <= setting.sendings
        if not ok:
            yield f"flusher {f}: no sending", _went(world, f, Flusher(me.place))
            return
        base = world._replace(ledgers=put(world.ledgers, t, ledger._replace(row=row)))
        yield (
            f"flusher {f} claims sending {row.sending}",
            _went(base, f, me._replace(at="cells", row=row)),
        )
        return
    if me.at == "finish":
        yield from _finish(protocol, world, f)
        return
    (n, r), cell = me.win[me.i // 2], me.i % 2
    last = me.i == 2 * len(me.win) - 1
    if "whole" in protocol.off:
        last = me.i == 2 * len(me.win) - 2
    nxt = me._replace(at="finish") if last else me._replace(at="cells", i=me.i + 1)
    if me.at == "entry":
        yield (
            f"flusher {f} writes refused/{n}",
            _went(world._replace(refused=world.refused | {(t, n, r)}), f, nxt),
        )
        return
    if cell and setting.refuse:
        if "pass_over" not in protocol.off and (t, n, r) in world.refused:
            yield f"flusher {f} skips cell 1 of {n}", _went(world, f, nxt)
            return
        entry = me._replace(at="entry") if "entry_first" not in protocol.off else nxt
        yield f"flusher {f}: cell 1 of {n} is refused", _went(world, f, entry)
        if not setting.accept:
            return
    base = write(protocol, world, me, n, r, cell)
    yield f"flusher {f} writes cell {cell} of {n}, run {r}", _went(base, f, nxt)


def _finish(protocol: Protocol, world: World, f: int) -> Steps:
    """Move the ledger row from the row that was read."""
    me = world.flushers[f]
    t = me.t
    ledger = world.ledgers[t]
    if ledger.row != me.row and "compare" not in protocol.off:
        yield f"flusher {f}: finish is refused", _went(world, f, Flusher(me.place))
        return
    base = world
    if protocol.setting.kind == "tx":
        for n, r in me.win:
            for cell in (0, 1):
                base = write(protocol, base, me, n, r, cell)
    base = base._replace(ledgers=put(base.ledgers, t, base.ledgers[t]._replace(row=me.new)))
    if protocol.setting.refuse and "entry_first" in protocol.off:
        for n, r in me.win:
            late = base._replace(refused=base.refused | {(t, n, r)})
            yield (
                f"flusher {f} finishes, and writes refused/{n} later",
                _went(late, f, Flusher(me.place)),
            )
        yield f"flusher {f} finishes, and dies", _went(base, f, Flusher(me.place))
        return
    if isinstance(me.after, str):
        nxt = Flusher(me.place)
    else:
        nxt = Flusher(me.place, "change", t, st=me.st, same=me.same, row=me.new, new=me.after)
    yield f"flusher {f} finishes {me.new.epoch}", _went(base, f, nxt)
    if protocol.setting.lost:
        yield (
            f"flusher {f} finishes {me.new.epoch}, the answer is lost",
            _went(base, f, Flusher(me.place)),
        )


def write(protocol: Protocol, world: World, me: Flusher, n: int, r: int, cell: int) -> World:
    """Write a cell of an attempt to the target."""
    log, setting = log_of(world, me.place), protocol.setting
    if top(log.com) < n and (n, r) not in world.kept:
        raise BrokenPromise(f"P1: a row of {n} is visible before {n} is completed")
    ledger = world.ledgers[me.t]
    key = ledger.key
    if cell == 0:
        key = n if "same_time" in protocol.off else max(key, n)
    cells, sent = ledger.cells, ledger.sent
    if setting.kind == "lists":
        sending = me.row.sending if me.row is not None else 0
        earlier = max((s for m, i, s in sent if (m, i) == (n, cell)), default=-1)
        if sending > earlier:
            cells = tuple(x for x in cells if x[:2] != (n, cell))
            sent = tuple(x for x in sent if x[:2] != (n, cell))
        if sending >= earlier:
            cells = tuple(sorted((*cells, (n, cell, r))))
            sent = tuple(sorted({*sent, (n, cell, sending)}))
    elif setting.kind == "tx" or (n, cell, r) not in cells:
        cells = tuple(sorted((*cells, (n, cell, r))))
    new = Ledger(ledger.row, cells, key, sent)
    return world._replace(ledgers=put(world.ledgers, me.t, new))


def garbage(
    protocol: Protocol, world: World, place: int, st: int
) -> tuple[tuple[str, int, int], ...]:
    """Return the objects that may be deleted: the oldest epoch first, and in it the newest run's manifest."""
    log = log_of(world, place)
    objects = [
        ("manifest", protocol.manifest(m).epoch, run_of(protocol.manifest(m).manifest))
        for m in log.man
    ]
    objects += [("segments", n, r) for n, r in log.seg]
    gone = [x for x in objects if protocol.ask(protocol.is_garbage, st, x[1], x[2])]
    return tuple(sorted(gone, key=lambda x: (x[1], x[0], -x[2])))


def delete(protocol: Protocol, world: World, place: int, name: tuple[str, int, int]) -> World:
    """Delete an object of the log."""
    kind, n, r = name
    log = log_of(world, place)
    if kind == "manifest":
        path = paths.MANIFEST.path(paths.ManifestName(n, f"r{r}" if r >= 0 else "operator"))
        return with_log(
            world, place, man=frozenset(m for m in log.man if protocol.manifest(m).manifest != path)
        )
    return with_log(world, place, seg=log.seg - {(n, r)})


def brief(row: LedgerRow | None) -> str:
    """Return a ledger row as a short text."""
    return "no row" if row is None else f"{row.epoch} {row.digest} of {row.log_id}"
