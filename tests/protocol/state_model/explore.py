"""The search, breadth first, and the check of the promises by a fresh run and a fresh flusher."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.protocol.state_model.conditions import NAMES, Protocol
from tests.protocol.state_model.flushers import flush_steps
from tests.protocol.state_model.outside import outside_steps
from tests.protocol.state_model.runs import DEAD, run_steps
from tests.protocol.state_model.world import (
    Act,
    BrokenPromise,
    Flusher,
    Ledger,
    Log,
    Run,
    Setting,
    World,
    log_of,
    top,
)


class Result(NamedTuple):
    """The result of a search."""

    states: int
    seconds: float
    complete: bool
    """True if every state of the setting was visited."""
    broken: str
    """The promise that does not hold; empty if all hold."""
    trace: list[str]
    """A shortest history to the broken promise."""
    stops: dict[str, tuple[int, list[str]]]
    """Errors that end a history until a person acts: how many there are, and a shortest history to each."""


def start(protocol: Protocol) -> World:
    """Return the world before the first run."""
    setting = protocol.setting
    none, files = frozenset[int](), (0,) * setting.epochs
    log = Log(files, files, ((0, 0),) * setting.epochs, frozenset(), -1, none, frozenset())
    flushers = tuple(Flusher(min(f, 1) if setting.places else 0) for f in range(setting.flushers))
    return World(
        logs=(log, None) if setting.places else (log,),
        ledgers=(Ledger(),) * setting.targets,
        refused=frozenset(),
        kept=frozenset(),
        now=0,
        ids=0,
        runs=(Run(),) * setting.runs,
        flushers=flushers,
        act=Act(),
        vouched=frozenset(),
        back=False,
        copy=(),
        left=(
            setting.times if setting.restores else 0,
            setting.ops if setting.acts else 0,
            setting.power,
        ),
    )


def steps(protocol: Protocol, world: World) -> Iterator[tuple[str, World]]:
    """Yield each step that any process can take."""
    if world.act.at != "set-mark":
        for f in range(len(world.flushers)):
            if f and world.flushers[f] == world.flushers[f - 1]:
                continue
            yield from flush_steps(protocol, world, f)
    for r in range(len(world.runs)):
        yield from run_steps(protocol, world, r)
    yield from outside_steps(protocol, world)


def explore(setting: Setting, seconds: float = 600, most: int = 3_000_000) -> Result:
    """Visit every state, nearest first, until a promise breaks."""
    began, protocol = time.process_time(), Protocol(setting)
    first = start(protocol)
    parent = {hash(first): 0}
    level, judged = [first], set[int]()
    stops: dict[str, tuple[int, list[str]]] = {}
    broken, trace, complete = "", list[str](), True
    judge = Judge(protocol)

    def path(source: int) -> list[str]:
        chain = [source]
        while parent[chain[-1]]:
            chain.append(parent[chain[-1]])
        world, words = first, []
        for code in reversed(chain[:-1]):
            label, world = next((a, w) for a, w in steps(protocol, world) if hash(w) == code)
            words.append(label)
        return words

    while level and not broken and complete:
        following = []
        for world in level:
            code = hash(world)
            try:
                durable = hash(judge.durable(world))
                if durable not in judged:
                    judged.add(durable)
                    stop = judge(world)
                    if stop:
                        count, shortest = stops.get(stop, (0, []))
                        stops[stop] = (count + 1, shortest or path(code))
                for _, after in steps(protocol, world):
                    new = hash(after)
                    if new not in parent:
                        parent[new] = code
                        following.append(after)
            except BrokenPromise as error:
                broken, trace = str(error), path(code)
                break
            if len(parent) > most or time.process_time() - began > seconds:
                complete = False
                break
        level = following
    used = time.process_time() - began
    return Result(len(parent), used, complete and not broken, broken, trace, stops)


class Judge:
    """Lets a fresh run and a fresh flusher continue alone, and checks the promises at their end."""

    def __init__(self, protocol: Protocol) -> None:
        self.setting = protocol.setting
        self.protocol = protocol
        self.places = (protocol.alone(0), protocol.alone(1))

    def durable(self, world: World) -> tuple[object, ...]:
        """Return the part of a world that stays if every process crashes."""
        logs = tuple(log and log._replace(wet=frozenset()) for log in world.logs)
        return (
            logs, world.ledgers, world.refused, world.kept, world.now, world.vouched, world.back,
            world.left[0] < self.setting.times,
        )  # fmt: skip

    def __call__(self, world: World) -> str:
        """Check the promises; return the errors that stay at the end."""
        place = 1 if self.setting.places and self._owner(world) else 0
        world, ended, errors = self.quiet(world, place)
        log = log_of(world, place)
        fine = ended in ("end", "end other run")
        if not ended.startswith("end"):
            raise BrokenPromise(f"P5: the run waits in {ended}, errors: {sorted(errors.values())}")
        for t in range(self.setting.targets):
            if not errors.get(t):
                self._check(world, log, t, fine)
        stands = [f"target {t}: {error}" for t, error in sorted(errors.items()) if error]
        if not fine:
            stands.append(f"run: {ended[4:]}")
        name = ", ".join(stands)
        if name and not world.back and not name.endswith("OptionError"):
            raise BrokenPromise(f"P3: an error without a cause: {name}")
        return name

    def _owner(self, world: World) -> bool:
        """Return True if the copy has adopted the targets."""
        copy = world.logs[1]
        return (
            copy is not None
            and copy.st >= 0
            and self.protocol.state(copy.st).checkpoint == "place 1"
        )

    def quiet(self, world: World, place: int) -> tuple[World, str, dict[int, str]]:
        """Return the world at the end, how the fresh run ended, and each target's error."""
        protocol = self.places[place]
        world = world._replace(
            runs=(DEAD,) * len(world.runs),
            flushers=(Flusher(place),),
            act=Act(),
            copy=(),
            left=(9, 0, 0),
        )
        world = world._replace(runs=(*world.runs, Run()))
        fresh, errors = len(world.runs) - 1, dict[int, str]()
        for _ in range(6 * self.setting.epochs + 6):
            earlier = world
            while following := list(run_steps(protocol, world, fresh)):
                world = following[-1][1]
            for t in range(self.setting.targets):
                world, errors[t] = self._flush(protocol, world, t)
            if world == earlier:
                break
        return world, world.runs[fresh].at, errors

    def _flush(self, protocol: Protocol, world: World, t: int) -> tuple[World, str]:
        """Let the flusher of a target continue until nothing changes; return its error."""
        label = ""
        for _ in range(40):
            begin = [w for words, w in flush_steps(protocol, world, 0) if f"(target {t})" in words]
            if not begin:
                return world, ""
            world = begin[0]
            while world.flushers[0].at != "idle":
                label, world = next(iter(flush_steps(protocol, world, 0)))
            error = label.partition(": ")[2].split(" ")[0]
            if label.endswith("nothing to flush"):
                return world, ""
            if error in ERRORS:
                return world, error
        raise BrokenPromise(f"P5: target {t} never comes to an end: {label}")

    def _check(self, world: World, log: Log, t: int, fine: bool) -> None:
        """Check P2 to P5 for a target without an error."""
        setting, ledger = self.setting, world.ledgers[t]
        if log.st < 0:
            return
        state = self.protocol.state(log.st)
        target = state.target(NAMES[t])
        if target is None or target.given_up:
            return
        last, com = ledger.row.epoch if ledger.row else -1, top(log.com)
        if last < com and fine:
            raise BrokenPromise(f"P5: target {t} is at {last} of {com}, and no error says why")
        for n in range(target.first if setting.lists else 0, min(last, com) + 1):
            if (t, n) in world.vouched:
                continue
            cells = [x for x in ledger.cells if x[0] == n]
            runs = sorted({r for _, _, r in cells})
            entries = [r for r in range(len(world.runs)) if (t, n, r) in world.refused]
            both = [x for x in cells if x[1] == 1 and x[2] in entries]
            present = sorted(
                [i for _, i, _ in cells] + [1 for r in runs if r in entries and not both]
            )
            if both:
                raise BrokenPromise(f"P2: cell 1 of {n} is in the table and in refused/")
            if 0 not in present or 1 not in present:
                raise BrokenPromise(f"P3: target {t} has cells {present} of {n}, which is flushed")
            if len(runs) > 1:
                raise BrokenPromise(f"P2: target {t} has rows of {n} of runs {runs}")
            if present != [0, 1]:
                raise BrokenPromise(f"P2: target {t} has rows of {n} twice")
            if setting.single and (n, runs[0]) not in world.kept:
                raise BrokenPromise(f"P2: {n} is of run {runs[0]}, which did not complete it")
            if setting.single and log.done[n][0] and log.done[n][1] != runs[0] and fine:
                raise BrokenPromise(
                    f"P4: {n} was completed by run {log.done[n][1]}, flushed is run {runs[0]}"
                )
        for item in state.given_up:
            run = log.done[item.epoch][1]
            if "give up" in setting.acts and (item.epoch, run) not in log.seg:
                raise BrokenPromise(f"P3: the files of {item.epoch}, which was given up, are gone")
        newest = max((n for n, i, _ in ledger.cells if i == 0), default=-1)
        if 0 <= ledger.key < newest:
            raise BrokenPromise(
                f"P2: the shared key shows epoch {ledger.key}, a later one was flushed"
            )


ERRORS = (
    "LedgerBehindLog",
    "Diverged",
    "WrongOwner",
    "MissingManifest",
    "MissingSegment",
    "CorruptLog",
)
