"""Events from outside: the clock, purged files, power losses, backups, copies, and operators."""

from __future__ import annotations

from itertools import combinations

from tests.protocol.state_model.conditions import NAMES, Protocol
from tests.protocol.state_model.runs import DEAD, Steps
from tests.protocol.state_model.world import (
    QUERY,
    Act,
    Flusher,
    Run,
    World,
    log_of,
    put,
    top,
    with_log,
)
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.state import EpochManifest

CHECKPOINT = ("off", "com", "wet")
LOG = ("st", "man", "seg")


def idle(world: World) -> tuple[Flusher, ...]:
    """Return the flushers after a restart."""
    return tuple(Flusher(f.place) for f in world.flushers)


def dead(world: World) -> tuple[Run, ...]:
    """Return the runs after the death of all live runs."""
    return tuple(r if r.at == "new" or r.at.startswith("end") else DEAD for r in world.runs)


def outside_steps(protocol: Protocol, world: World) -> Steps:
    """Yield the events that may happen beside runs and flushers."""
    setting = protocol.setting
    if world.now < setting.ticks:
        yield "the clock ticks", world._replace(now=world.now + 1)
    if setting.purge:
        log = log_of(world, 0)
        for n in range(top(log.com)):
            if log.off[n]:
                yield (
                    f"Spark purges {n}",
                    with_log(world, 0, off=put(log.off, n, 0), com=put(log.com, n, 0)),
                )
                break
    if world.left[2]:
        yield from _power(world)
    if setting.restores or setting.places:
        yield from _copies(protocol, world)
    if setting.acts:
        yield from _acts(protocol, world)


def _power(world: World) -> Steps:
    """Let the power fail: any file that is not synced may be lost."""
    log = log_of(world, 0)
    wet = sorted(log.wet)
    for k in range(len(wet) + 1):
        for lost in combinations(wet, k):
            off, com, seg = list(log.off), list(log.com), set(log.seg)
            for kind, n, r in lost:
                if kind == "off":
                    off[n] = 0
                elif kind == "com":
                    com[n] = 0
                else:
                    seg.discard((n, r))
            base = with_log(
                world, 0, off=tuple(off), com=tuple(com), seg=frozenset(seg), wet=frozenset()
            )
            remaining = (world.left[0], world.left[1], world.left[2] - 1)
            yield (
                f"the power fails, lost is {list(lost)}",
                base._replace(runs=dead(world), flushers=idle(world), left=remaining),
            )


def _copies(protocol: Protocol, world: World) -> Steps:
    """Copy checkpoint, log and targets; then restore parts of the copy, or use it at another place."""
    setting = protocol.setting
    log, copy = log_of(world, 0), world.copy
    if not world.left[0] and not setting.places:
        return
    if setting.places and not copy and log.st < 0:
        return  # there is no log to copy yet
    checkpoint = {name: getattr(log, name) for name in CHECKPOINT}
    checkpoint["wet"] = frozenset()
    parts = {
        "checkpoint": tuple(checkpoint.values()),
        "log": tuple(getattr(log, name) for name in LOG),
    }
    if not copy:
        if setting.slow:
            name = setting.slow
            yield f"the {name} is copied", world._replace(copy=((name, parts[name]),))
        else:
            both = tuple(parts.items())
            yield (
                "a copy of everything is taken",
                world._replace(copy=(*both, ("ledgers", (world.ledgers, world.refused)))),
            )
        return
    if len(copy) == 1:
        (name,) = parts.keys() - {copy[0][0]}
        both = (*copy, (name, parts[name]))
        yield (
            f"the {name} is copied",
            world._replace(copy=(*both, ("ledgers", (world.ledgers, world.refused)))),
        )
        return
    have = dict(copy)
    if setting.places:
        if world.logs[1] is None:
            new = log._replace(
                **dict(zip(CHECKPOINT, have["checkpoint"], strict=True)),
                **dict(zip(LOG, have["log"], strict=True)),
            )
            yield (
                "the copy is put at another place",
                world._replace(logs=(log, new), back=True, copy=copy),
            )
        return
    for what in setting.restores:
        base, names = world, what.split("+")
        if "log" in names and have["log"][0] < 0:
            continue  # the copy has no log, so this would delete it
        if "checkpoint" in names:
            base = with_log(base, 0, **dict(zip(CHECKPOINT, have["checkpoint"], strict=True)))
        if "log" in names:
            base = with_log(base, 0, **dict(zip(LOG, have["log"], strict=True)))
            base = base._replace(refused=have["ledgers"][1])
        if "checkpoint" in names or "log" in names:
            base = base._replace(runs=dead(base))
        if "target" in names:
            base = base._replace(ledgers=(have["ledgers"][0][0], *base.ledgers[1:]))
        if base == world:
            continue
        remaining = (world.left[0] - 1, world.left[1], world.left[2])
        yield (
            f"{what} restored from the copy",
            base._replace(
                back=True,
                left=remaining,
                copy=() if not remaining[0] else copy,
                flushers=idle(base) if setting.stopped else base.flushers,
            ),
        )


def _acts(protocol: Protocol, world: World) -> Steps:
    """Let an operator act. `set-mark` and `adopt` have a second step, at the ledger."""
    act, setting = world.act, protocol.setting
    if act.at == "set-mark":
        ledger = world.ledgers[act.t]
        ok = ledger.row == act.row
        ledgers = put(world.ledgers, act.t, ledger._replace(row=act.new)) if ok else world.ledgers
        yield (
            f"set-mark sets the row of target {act.t}: {ok}",
            world._replace(act=Act(), ledgers=ledgers),
        )
        return
    if act.at == "adopt":
        yield _adopt_row(protocol, world)
        return
    if not world.left[1]:
        return
    remaining = (world.left[0], world.left[1] - 1, world.left[2])
    base = world._replace(left=remaining, back=True)
    for what in setting.acts:
        yield from act_steps(protocol, base, what)


def act_steps(protocol: Protocol, world: World, what: str) -> Steps:
    """Yield the ways in which an operator may act."""
    setting = protocol.setting
    place = 1 if world.logs[-1] is not None and len(world.logs) > 1 else 0
    log = log_of(world, place)
    everything = frozenset((t, n) for t in range(setting.targets) for n in range(top(log.com) + 1))
    if log.st < 0:
        return
    if what == "delete log":
        if all(r.at in ("new", "dead") or r.at.startswith("end") for r in world.runs):
            unknown = frozenset((t, n) for t, n in everything if world.ledgers[t].row is None)
            base = with_log(world, 0, st=-1, man=frozenset(), seg=frozenset())
            yield (
                "the log is deleted",
                base._replace(
                    ids=world.ids + 1, vouched=world.vouched | unknown, flushers=idle(base)
                ),
            )
        return
    if what == "adopt":
        new = protocol.ask(protocol.adopt, log.st, world.ids + 1, place)
        base = with_log(world, place, st=new)
        flushers = idle(base) if setting.stopped else base.flushers
        yield (
            "adopt sets a new log id in the state",
            base._replace(ids=world.ids + 1, act=Act("adopt", place=place), flushers=flushers),
        )
        return
    state = protocol.state(log.st)
    if what == "give up missing":
        n = state.last.epoch + 1
        link = state.last.as_predecessor()
        manifest = EpochManifest(
            epoch=n,
            manifest=paths.MANIFEST.path(paths.ManifestName(n, "operator")),
            digest=f"{n}.op {link.digest}",
            offsets_digest=f"v{log.off[n] if n < setting.epochs else 0}", first_us=link.last_us + 1,
            last_us=link.last_us + 1, sums=link.sums, predecessor=link,
        )  # fmt: skip
        m = protocol.intern(manifest)
        new = protocol.ask(protocol.give_up_missing, log.st, m, top(log.com))
        if isinstance(new, int):
            base = with_log(world, place, st=new, man=log.man | {m})
            yield (
                f"the missing epoch {n} is given up",
                base._replace(vouched=world.vouched | {(t, n) for t in range(setting.targets)}),
            )
        return
    for t in range(setting.targets):
        target = state.target(NAMES[t])
        if target is None:
            continue
        if what == "give up target":
            new = protocol.ask(protocol.give_up_target, log.st, t)
            if isinstance(new, int):
                yield f"target {t} is given up", with_log(world, place, st=new)
        elif what == "give up":
            n = target.mark.epoch + 1
            new = protocol.ask(protocol.give_up_epoch, log.st, t, n)
            if isinstance(new, int):
                yield (
                    f"epoch {n} is given up for target {t}",
                    with_log(world, place, st=new)._replace(vouched=world.vouched | {(t, n)}),
                )
        elif what == "set-mark" and not target.given_up:
            yield from _set_mark(protocol, world, place, t)


def _set_mark(protocol: Protocol, world: World, place: int, t: int) -> Steps:
    """Begin `set-mark` for each epoch, unless it would double rows in transactions. All flushers are dead."""
    log, ledger = log_of(world, place), world.ledgers[t]
    state = protocol.state(log.st)
    target = state.target(NAMES[t])
    assert target is not None
    for n in range(target.first - 1, state.settled + 1):
        new: LedgerRow | str = protocol.ask(protocol.row_at, log.st, n, log.man)
        if n == target.mark.epoch:
            new = LedgerRow(QUERY, state.log_id, n, target.mark.digest)
        doubled = protocol.setting.kind != "cells" and any(m > n for m, _, _ in ledger.cells)
        if isinstance(new, str) or new == ledger.row or doubled:
            continue
        lacking = frozenset(
            (t, m) for m in range(n + 1) if {i for k, i, _ in ledger.cells if k == m} != {0, 1}
        )
        yield (
            f"set-mark {n} for target {t}",
            world._replace(
                act=Act("set-mark", t, ledger.row, new, place),
                vouched=world.vouched | lacking,
                flushers=idle(world),
            ),
        )


def _adopt_row(protocol: Protocol, world: World) -> tuple[str, World]:
    """Set the adopted ledger row of one target after the other."""
    act = world.act
    ledger, st = world.ledgers[act.t], log_of(world, act.place).st
    ledgers = world.ledgers
    if ledger.row is not None and st >= 0:
        row = protocol.ask(protocol.adopted_row, st, ledger.row)
        ledgers = put(ledgers, act.t, ledger._replace(row=row))
    after = act._replace(t=act.t + 1) if act.t + 1 < protocol.setting.targets else Act()
    return f"adopt sets the row of target {act.t}", world._replace(act=after, ledgers=ledgers)
