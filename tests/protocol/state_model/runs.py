"""The steps of a run, each with one access to a store: Spark's micro-batches, and `commit()`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.protocol.state_model.conditions import Protocol
from tests.protocol.state_model.world import (
    BrokenPromise,
    Log,
    Run,
    World,
    log_of,
    put,
    top,
    with_log,
)
from wal_sink.model import paths

Steps = Iterator[tuple[str, World]]
DEAD = Run("dead")


def run_place(protocol: Protocol, run: int) -> int:
    """Return the place of a run."""
    places = protocol.setting.places
    return places[min(run, len(places) - 1)] if places else 0


def run_steps(protocol: Protocol, world: World, r: int) -> Steps:
    """Yield the next steps of a run: a text, and the world after the step."""
    setting, me, place = protocol.setting, world.runs[r], run_place(protocol, r)
    at, n = me.at, me.n
    if at in ("dead", "end") or at.startswith("end ") or world.logs[place] is None:
        return
    log = log_of(world, place)

    def go(to: str, base: World = world, **changes: Any) -> World:
        return base._replace(runs=put(base.runs, r, me._replace(at=to, **changes)))

    if at == "new":
        yield from _start(protocol, world, r)
    elif at == "plan":
        if log.off[n]:
            if me.fresh:
                yield f"run {r} adopts offsets/{n}", go("prepare", v=log.off[n])
            else:
                yield f"run {r} ends: offsets/{n} is another run's", go("end other run")
            return
        again = world.left[0] < setting.times if setting.restores else world.left[2] < setting.power
        for v in (1, 2) if again else (1,):
            wet = log.wet | {("off", n, 0)} if setting.power else log.wet
            base = with_log(world, place, off=put(log.off, n, v), wet=wet)
            yield f"run {r} writes offsets/{n} (variant {v})", go("prepare", base, v=v)
    elif at == "prepare":
        after = protocol.ask(protocol.last_opened, log.st) if log.st >= 0 else -1
        yield f"run {r} reads the state, for its tasks", go("compute", after=after)
    elif at == "compute":
        wet = log.wet
        if setting.power and "sync_segments" in protocol.off:
            wet = wet | {("seg", n, r)}
        base = with_log(world, place, seg=log.seg | {(n, r)}, wet=wet)
        yield f"run {r} computes {n}, writes segments", go("look", base)
    elif at in ("look", "again"):
        if top(log.com) >= n:
            yield f"run {r}: Fenced, {n} is completed", go("end Fenced")
            return
        base = with_log(world, place, wet=_synced(protocol, log, n)) if log.wet else world
        nxt = "manifest" if at == "again" else "open"
        yield f"run {r} reads commits/, and syncs the checkpoint", go(nxt, base)
    elif log.st < 0:
        yield f"run {r}: the log is gone", go("end CorruptLog")
    elif at == "open":
        new = protocol.ask(protocol.open_run, log.st, r, place, n, world.now, me.after)
        if isinstance(new, str):
            yield f"run {r}: {new}", go(f"end {new}")
            return
        if new is None:  # commit() keeps nothing in memory, so it opens each time
            yield f"run {r} is open", go("manifest")
            return
        _refuse_loss(protocol, log, new)
        yield f"run {r} opens", go("again", with_log(world, place, st=new))
    elif at in ("manifest", "publish", "publish again"):
        yield from _publish(protocol, world, r)
    elif at == "commit":
        yield from _complete(protocol, world, r)


def _start(protocol: Protocol, world: World, r: int) -> Steps:
    """Start a run. If Spark allows one driver only, earlier runs are dead."""
    place = run_place(protocol, r)
    log, runs = log_of(world, place), world.runs
    mine = [x for x in range(r) if run_place(protocol, x) == place]
    if any(runs[x].at == "new" for x in mine):
        return
    if protocol.setting.single:
        runs = tuple(
            DEAD if x in mine and not _outlives(protocol, run) else run
            for x, run in enumerate(runs)
        )
    k, base = top(log.com) + 1, world
    if log.st < 0:
        st = protocol.ask(protocol.create, place, r, world.ids, k - 1)
        base = with_log(world, place, st=st)
    run = Run("plan" if k < protocol.setting.epochs else "end", k)
    yield f"run {r} reads the checkpoint: next is {k}", base._replace(runs=put(runs, r, run))


COMMIT = ("look", "open", "again", "manifest", "publish", "publish again")


def _outlives(protocol: Protocol, run: Run) -> bool:
    """Return True if a run does not end with its driver."""
    ended = run.at in ("new", "dead") or run.at.startswith("end")
    return ended or (protocol.setting.zombie and run.at in COMMIT)


def _synced(protocol: Protocol, log: Log, n: int) -> frozenset[tuple[str, int, int]]:
    """Return the files that are not synced after `commit(N)` has synced offsets/N and commits/N-1."""
    synced = set()
    if "sync_offsets" not in protocol.off:
        synced.add(("off", n, 0))
    if "sync_commits" not in protocol.off:
        synced.add(("com", n - 1, 0))
    return log.wet - synced


def _publish(protocol: Protocol, world: World, r: int) -> Steps:
    """Create the manifest and publish it; or publish nothing, if the epoch is a replay."""
    setting, me, place = protocol.setting, world.runs[r], run_place(protocol, r)
    log, n = log_of(world, place), me.n

    def go(to: str, base: World = world, saw: bool = False) -> World:
        return base._replace(runs=put(base.runs, r, me._replace(at=to, saw=saw)))

    mine = next(
        (
            m
            for m in log.man
            if protocol.manifest(m).manifest == paths.MANIFEST.path(paths.ManifestName(n, f"r{r}"))
        ),
        -1,
    )
    if me.at == "manifest":
        link = protocol.ask(protocol.link, log.st, r, n, me.v)
        if isinstance(link, str):
            yield f"run {r}: {link} at {n}", go(f"end {link}")
        elif link is None:
            yield f"run {r}: {n} is settled, nothing is published", go("commit", saw=True)
        elif mine >= 0:
            yield f"run {r}: AlreadyPublished {n}", go("end AlreadyPublished")
        else:
            m = protocol.make_manifest(link, r, n, me.v)
            base = with_log(world, place, man=log.man | {m})
            yield f"run {r} creates manifest {n}", go("publish", base)
        if setting.swallow:
            yield f"run {r} keeps an error at {n} to itself", go("commit")._replace(back=True)
        return
    if (n, r) not in log.seg:
        yield f"run {r}: MissingSegment", go("end MissingSegment")
        return
    if mine < 0:
        yield f"run {r}: its manifest is gone", go("end MissingManifest")
        return
    new = protocol.ask(protocol.publish, log.st, r, mine)
    if new == "LogFull":
        return  # the run waits for space
    if isinstance(new, str):
        yield f"run {r}: {new} at {n}", go(f"end {new}")
    elif new is None:
        yield f"run {r}: {n} is settled, nothing is published", go("commit", saw=True)
    else:
        base = with_log(world, place, st=new)
        yield f"run {r} publishes {n}", go("commit", base)
        if setting.lost:
            yield f"run {r} publishes {n}, the answer is lost", go("publish again", base)


def _refuse_loss(protocol: Protocol, log: Log, new: int) -> None:
    """Check that a target gets the epochs of the run, and that no dropped target lacks a completed epoch."""
    earlier, after = protocol.state(log.st), protocol.state(new)
    if not after.live:
        raise BrokenPromise("P3: a run opens, and no target gets its epochs")
    for target in earlier.live:
        lacks = target.mark.epoch < min(top(log.com), earlier.last.epoch)
        if after.target(target.name) is None and lacks:
            raise BrokenPromise("P3: a target is dropped that lacks a completed epoch")


def _complete(protocol: Protocol, world: World, r: int) -> Steps:
    """Let Spark complete an epoch."""
    setting, me, place = protocol.setting, world.runs[r], run_place(protocol, r)
    log, n = log_of(world, place), me.n
    later = (x for x in range(r + 1, len(world.runs)) if run_place(protocol, x) == place)
    if setting.zombie and any(world.runs[x].at != "new" for x in later):
        yield f"run {r} has no driver", world._replace(runs=put(world.runs, r, DEAD))
        return
    if log.com[n]:
        end = me._replace(at="end other run")
        yield f"run {r} ends: commits/{n} is there", world._replace(runs=put(world.runs, r, end))
        return
    last = protocol.state(log.st).last if log.st >= 0 else None
    attempt = r
    if setting.swallow and last is not None and last.epoch == n:
        attempt = run_of(last.manifest)  # an earlier run has published the epoch
    if me.saw and last is not None:
        if last.offsets_digest != f"v{me.v}":
            raise BrokenPromise(f"P4: {n} is completed from other offsets than are settled")
        attempt = run_of(last.manifest)
    wet = log.wet | {("com", n, 0)} if setting.power else log.wet
    base = with_log(
        world, place, com=put(log.com, n, r + 1), done=put(log.done, n, (me.v, attempt)), wet=wet
    )
    run = me._replace(
        at="plan" if n + 1 < setting.epochs else "end", n=n + 1, v=0, fresh=False, saw=False
    )
    yield (
        f"run {r} writes commits/{n}",
        base._replace(runs=put(base.runs, r, run), kept=base.kept | {(n, attempt)}),
    )


def run_of(path: str) -> int:
    """Return the run in a manifest's path; -1 for a manifest that an operator made."""
    name = path.rpartition("-")[2].removesuffix(".json")
    return int(name[1:]) if name[:1] == "r" else -1
