"""A state-space model of the protocol: every order of every actor's steps, breadth first.

The flushers decide with the real functions of `wal_sink.protocol`, on views built from the state.
Spark, the publishers and the stores are modelled: one step is one access to a store. A
process that takes no further step is a crash, so crashes are everywhere; an older run may go on after a
newer one has started. What is switched off in `Rules` is a rule broken on purpose.

Not modelled: lost answers (except that to a commit of staged rows), power loss, edits by operators; see the
other tests of this folder.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import NamedTuple

import msgspec

from wal_sink.errors import LedgerShadowed
from wal_sink.model.ledger import BegunEpoch, LedgerState, Outcome, Owner, Window
from wal_sink.model.manifest import Attempt, Manifest, Published, SegmentRef
from wal_sink.model.records import Chosen, CommitProof, FlushedEpoch, LogIdentity
from wal_sink.protocol.attempts import (
    Contender,
    Evidence,
    Writer,
    as_chosen,
    choose,
    fate,
)
from wal_sink.protocol.ledger import (
    CLOCKS_DIFFER_US,
    after_finish,
    begin,
    bounded_now,
    finish,
    flushed_record,
    is_mine,
    new_window,
    next_sending,
)
from wal_sink.protocol.next_step import (
    Begin,
    Choose,
    CreateLedger,
    Idle,
    ManifestMissing,
    Observation,
    RecordFlushed,
    Resume,
    Step,
    Trim,
    next_step,
)
from wal_sink.protocol.windows import Choice, following, merged

OWNER = Owner("query", "log", "checkpoint")
NOW = 100
ROWS = 2


@dataclass(frozen=True)
class Rules:
    """What is explored; the defaults are the protocol as it is, with an older run that may go on."""

    epochs: int = 2
    runs: int = 2
    flushers: int = 1
    zombie: bool = True
    """An older run may still write `commits/N` when a newer one has started."""
    empties: bool = False
    """An attempt may have no rows."""
    clocks: tuple[int, ...] = (9, 3, 5)
    """Of the runs."""
    flusher_us: int = NOW
    """The clock of the flushers; that of the target says NOW."""
    # --- rules that can be switched off ---
    swallows: bool = False
    """The function of a run may keep the writer's error to itself: Spark writes `commits/N`, and there is no
    manifest. The flush stops at such an epoch."""
    begins: bool = True
    """12. Off: not the first start makes `log.json`, but the first publish."""
    proof: bool = True
    """11: wait for a proof. Off: the highest generation."""
    lowest: bool = False
    ticket: str = "start"
    """2: taken before the checkpoint is read. Off: `planned`, after it; `lazy`, at the first commit."""
    publish_empty: bool = True
    """6 and 12. Off: no manifest without rows, and a missing one is taken for an empty epoch."""
    commits_first: bool = True
    """9. Off: manifests are listed before `commits/` is read."""
    begin: bool = True
    """14. Off: rows are written without a decision in the ledger."""
    window: int = 1
    """10: how many epochs are begun together."""
    names_all: bool = True
    """14. Off: `begin` of a window names its first epoch only; who resumes it chooses the others."""
    chained: bool = True
    """14. Off: timestamps are those of the publisher's clock."""
    bounded: bool = True
    """14. Off: the flusher's clock is believed, whatever the target's says."""
    knows: bool = False
    """A flusher may go on from the row as it has left it, and not read it."""
    whole: bool = True
    """14. Off: to begin, it is enough that the epoch before is flushed, and nothing is begun."""
    trim_after_finish: bool = True
    """17. Off: segments go before `finish`."""
    early: bool = False
    """A run may claim its generation as it starts."""
    herald: bool = False
    """The newest run dies when it has claimed its generation early."""
    sweeper: bool = False
    """18: segments of fenced runs that no manifest names are deleted."""
    fence: bool = True
    """18. Off: those of a run that is not fenced, too."""
    note: bool = True
    """18. Off: nothing says that an attempt has lost its segments."""
    second_look: bool = True
    """18. Off: the manifest is not looked for again after the note."""
    patient: bool = True
    """11. Off: the flusher does not wait for a proof that may come, but takes the highest generation; as it
    does when it sees no run that lives."""
    purges: bool = False
    """Spark purges `commits/N` and `offsets/N + 1`, once it has written `commits/N + 1`."""
    relists: bool = True
    """11. Off: the manifests are not listed again after the notes were read."""
    judged: bool = True
    """Off: an attempt that Spark did not keep is passed over in silence, to see what else may happen."""
    atomic: bool = False
    """Rows count when `finish` takes effect, and each that is added is one more in the table."""
    starts: bool = True
    """15. Off: a flusher that has lost its transaction goes on behind the rows that it had written."""
    one_transaction: bool = True
    """15. Off: each row is committed by itself, and `finish` only moves the mark."""
    staged: bool = False
    """With `atomic`: rows are staged, and a `finish` whose answer is lost may take effect at any later time,
    once in a history."""
    conditional: bool = True
    """16. Off: `finish` is not refused when the ledger has moved on."""
    hides: str = ""
    """A plain write of the future, at any time: what updates write to this field of the row is never seen."""
    reads_back: bool = True
    """16. Off: a window is finished when its last update was acknowledged, whatever the row says."""
    torn: bool = True
    """16. Off: a window is begun from a row that shows a part of an update."""
    kept_apart: bool = True
    """15. Off: receipts of a try that an error has ended are committed with those of the next one."""
    keeps_unknown: bool = True
    """16. Off: what `finish` was asked to commit is deleted when its answer does not come."""
    targets: int = 1
    """Of two, each has a ledger; flushers take turns in them."""
    chosen: bool = True
    """11. Off: the flusher of each target chooses for itself."""
    slowest: bool = True
    """18. Off: an epoch is trimmed when one of two targets has it."""
    sendings: int = 0
    """The rows of all epochs are of one key, each with a list that is not frozen: what is written twice with
    one timestamp is there twice. So many sendings of a window are explored; 0: there is no list."""
    raised: bool = True
    """15. Off: a flusher that resumes a window writes it with its timestamps."""
    above_all: bool = True
    """15. Off: a sending's timestamps lie above the same rows' of the one before, not above all of them."""
    announced: bool = True
    """15. Off: a flusher writes a sending that the ledger does not have."""
    newest_finishes: bool = True
    """15. Off: a sending that was overtaken may finish the window."""
    sends_once: bool = True
    """15. Off: a request that is not answered is sent again as it is."""
    postcheck: bool = True
    """7. Off: a run does not look again after its manifest."""
    refuses: bool = False
    """24: the target refuses row 0 of each attempt, until it is repaired."""
    rewinds: bool = False
    """An operator may rewind, once, and flushers stand still in their rows meanwhile."""
    kept_first: bool = True
    """24. Off: a flusher passes over a refused row whose entry is not durable."""


class Run(NamedTuple):
    """One run: where it is, its epoch, ticket, generation, and whether `offsets/N` was there."""

    at: str = "new"
    n: int = 0
    ticket: int = 0
    gen: int = 0
    replay: bool = False


class Sweeper(NamedTuple):
    """Who deletes orphans: where it is, and the attempt at whose segments it looks, as epoch and run."""

    at: str = "idle"
    n: int = 0
    r: int = 0
    fenced: bool = False


class Notes(NamedTuple):
    """What runs have noted of attempts."""

    kept: frozenset[tuple[int, int, int]]
    swept: frozenset[tuple[int, int]]


class Row(NamedTuple):
    """A row of a run's attempt at an epoch, with its write timestamp."""

    n: int
    run: int
    row: int
    us: int


class Fl(NamedTuple):
    """One flusher: where it is, and what it has read."""

    at: str = "idle"
    com: int = -1
    recorded: FlushedEpoch | None = None
    ledger: LedgerState | None = None
    listed: frozenset[tuple[int, int, int]] = frozenset()
    notes: Notes | None = None
    window: Window | None = None
    row: int = 0
    lost: int = 0
    """How many of the rows were written in a transaction that is gone."""
    twice: int = 0
    """How many rows of a try before are still under the receipts."""
    passed: frozenset[tuple[int, int, int]] = frozenset()
    """What was in quarantine when it took the window."""
    known: LedgerState | None = None
    """The row as it has left it."""
    seen: LedgerState | None = None
    """The row with which the next update compares."""


class Listed(NamedTuple):
    """The element of a list that a row writes: its list has this one alone."""

    us: int
    epoch: int
    row: int


class Late(NamedTuple):
    """A `finish` that is on its way, though its flusher has given up waiting."""

    window: Window
    gone: bool
    """Whether what it is to commit is deleted."""


class Side(NamedTuple):
    """What a target has for itself: see `State`."""

    recorded: FlushedEpoch | None
    ledger: LedgerState | None
    seen: tuple[frozenset[tuple[int, int]], ...]
    cells: tuple[tuple[int, int], ...]


class State(NamedTuple):
    """Everything durable, and where every process is; of two targets, as the first one has it."""

    off: frozenset[int]
    com: tuple[int | None, ...]
    """Which run wrote `commits/N`."""
    first: int | None
    """The log's first epoch; None: there is no `log.json`."""
    gens: tuple[int, ...]
    """Runs in the order of their claims."""
    man: frozenset[tuple[int, int, int]]
    """Epoch, generation, time of the publisher."""
    seg: frozenset[tuple[int, int]]
    emp: frozenset[tuple[int, int]]
    kept: frozenset[tuple[int, int, int]]
    swept: frozenset[tuple[int, int]]
    """Epoch and generation of attempts without manifest whose segments may be gone."""
    recorded: FlushedEpoch | None
    ledger: LedgerState | None
    seen: tuple[frozenset[tuple[int, int]], ...]
    """Rows in the table by epoch, as run and number."""
    cells: tuple[tuple[int, int], ...]
    """Timestamp and epoch of each key, which all epochs write."""
    runs: tuple[Run, ...]
    fls: tuple[Fl, ...]
    sweeper: Sweeper = Sweeper()
    decided: frozenset[tuple[int, int]] = frozenset()
    """Epoch and generation that were chosen for both targets."""
    other: Side | None = None
    """What the other target has."""
    late: Late | None = None
    was_late: bool = False
    quarantine: frozenset[tuple[int, int, int]] = frozenset()
    """Epoch, run and number of the rows in it."""
    repaired: bool = False
    """Whether the target takes every row."""
    rewound: bool = False
    listed: tuple[Listed, ...] = ()
    """The elements of the list that are not deleted, ascending."""
    deleted_us: int = 0
    """The list's newest deletion."""
    hidden: bool = False
    """Whether updates of `Rules.hides` are never seen."""
    on_their_way: frozenset[Listed] = frozenset()
    """Requests whose flusher has given up waiting."""


class BrokenError(Exception):
    """An invariant does not hold."""


Next = Iterator[tuple[str, State]]


def start(rules: Rules) -> State:
    """Nothing has happened."""
    return State(
        off=frozenset(),
        com=(None,) * rules.epochs,
        first=None if rules.swallows else 0,
        gens=(),
        man=frozenset(),
        seg=frozenset(),
        emp=frozenset(),
        kept=frozenset(),
        swept=frozenset(),
        recorded=None,
        ledger=None,
        seen=(frozenset(),) * rules.epochs,
        cells=((0, -1),) * ROWS,
        runs=(Run(),) * rules.runs,
        fls=(Fl(),) * rules.flushers,
        other=Side(None, None, (frozenset(),) * rules.epochs, ((0, -1),) * ROWS)
        if rules.targets > 1
        else None,
    )


def swapped(s: State) -> State:
    """Return the state as the other target has it."""
    assert s.other is not None
    mine = Side(s.recorded, s.ledger, s.seen, s.cells)
    return s._replace(**s.other._asdict(), other=mine)


def committed(s: State) -> int:
    """Return the highest checkpointed epoch."""
    return max((n for n, run in enumerate(s.com) if run is not None), default=-1)


# --- runs -----------------------------------------------------------------------------------------


def moved(s: State, r: int, at: str, **changes: object) -> State:
    """Move run r."""
    run = s.runs[r]._replace(at=at, **changes)  # type: ignore[arg-type]
    return s._replace(runs=(*s.runs[:r], run, *s.runs[r + 1 :]))


def run_steps(rules: Rules, s: State, r: int) -> Next:
    """What run r may do next: Spark's part of a run, and the sink's."""
    yield from _spark_steps(rules, s, r)
    yield from _publish_steps(rules, s, r)
    if rules.swallows and s.runs[r].at == "commit":
        yield f"run{r} publishes nothing, and goes on", moved(s, r, "return")


def _spark_steps(rules: Rules, s: State, r: int) -> Next:  # noqa: C901 - a list of steps
    me, n = s.runs[r], s.runs[r].n
    match me.at:
        case "new" if r > 0 and s.runs[r - 1].at == "new":
            return
        case "new" | "own" | "ticket":
            yield _starting(rules, s, r)
        case "read":
            if rules.early and not me.gen and len(s.gens) == me.ticket:
                at = "dead" if rules.herald and r == rules.runs - 1 else "read"
                claims = moved(s, r, at, gen=me.ticket + 1)
                yield f"run{r} claims {me.ticket + 1} early", claims._replace(gens=(*s.gens, r))
            if rules.herald and r == rules.runs - 1:
                return
            n = committed(s) + 1
            at = "plan" if n < rules.epochs else "dead"
            ticket = len(s.gens) if rules.ticket == "planned" else me.ticket
            reads = moved(s, r, at, n=n, ticket=ticket, replay=n in s.off)
            yield f"run{r} reads the checkpoint: epoch {n}", reads
        case "plan" if n in s.off and not me.replay:
            yield f"run{r} dies, offsets/{n} is there", moved(s, r, "dead")
        case "plan":
            planned = moved(s, r, "commit")._replace(off=s.off | {n})
            yield f"run{r} runs the tasks of {n}", planned._replace(seg=s.seg | {(n, r)})
            if rules.empties:
                empty = planned._replace(emp=s.emp | {(n, r)})
                yield f"run{r} runs the tasks of {n}: no rows", empty
        case "return":
            newer = any(other.at != "new" for other in s.runs[r + 1 :])
            if newer and not rules.zombie:
                return
            if s.com[n] is not None:
                yield f"run{r} dies, commits/{n} is there", moved(s, r, "dead")
                if rules.purges and n + 1 < rules.epochs and s.com[n + 1] is not None:
                    on = moved(s, r, "commit", n=n + 1)._replace(seg=s.seg | {(n + 1, r)})
                    yield f"run{r} writes commits/{n} again, and runs the tasks of {n + 1}", on
                return
            at = "plan" if n + 1 < rules.epochs else "dead"
            done = moved(s, r, at, n=n + 1, replay=False)
            yield f"run{r} writes commits/{n}", done._replace(com=(*s.com[:n], r, *s.com[n + 1 :]))


def _starting(rules: Rules, s: State, r: int) -> tuple[str, State]:
    """What the sink does as a run starts, before Spark reads the checkpoint."""
    at, n = s.runs[r].at, s.runs[r].n
    if at == "new" and s.first is None and rules.begins:
        return f"run{r} reads commits/", moved(s, r, "own", n=committed(s) + 1)
    if at == "own":
        first = n if s.first is None else s.first
        return f"run{r} sees that log.json is there", moved(s._replace(first=first), r, "ticket")
    return f"run{r} takes ticket {len(s.gens)}", moved(s, r, "read", ticket=len(s.gens))


def _publish_steps(rules: Rules, s: State, r: int) -> Next:
    me, n = s.runs[r], s.runs[r].n
    match me.at:
        case "commit" if (n, r) in s.emp and not rules.publish_empty:
            yield f"run{r} publishes nothing for {n}", moved(s, r, "return")
        case "commit" if me.gen and len(s.gens) > me.gen:
            yield f"run{r} is fenced at {n}", moved(fenced(s, r), r, "dead")
        case "commit" if me.gen:
            yield f"run{r} is the newest", moved(s, r, "committed?")
        case "commit" if rules.ticket == "lazy" or len(s.gens) == me.ticket:
            gen = len(s.gens) + 1
            claims = moved(s, r, "committed?", gen=gen)
            yield f"run{r} claims {gen}", claims._replace(gens=(*s.gens, r))
        case "commit":
            yield f"run{r} is fenced at its claim", moved(s, r, "dead")
        case "committed?" if committed(s) >= n:
            yield f"run{r} is fenced, {n} is checkpointed", moved(fenced(s, r), r, "dead")
        case "committed?":
            yield f"run{r} finds {n} not checkpointed", moved(s, r, "publish")
        case "publish":
            man = s.man | {(n, me.gen, rules.clocks[r])}
            first = n if s.first is None else s.first
            published = moved(s, r, "look again")._replace(man=man, first=first)
            yield f"run{r} publishes {n}-{me.gen}", published
        case "look again":
            late = rules.postcheck and len(s.gens) > me.gen
            yield f"run{r} looks again", moved(s, r, "dead" if late else "return")


def fenced(s: State, r: int) -> State:
    """Rule 11: leave a note about the epoch before, if this run had published it."""
    n, gen = s.runs[r].n - 1, s.runs[r].gen
    if not any(m[:2] == (n, gen) for m in s.man):
        return s
    return s._replace(kept=s.kept | {(n, gen, len(s.gens))})


# --- orphans ----------------------------------------------------------------------------------------


def sweeper_steps(rules: Rules, s: State) -> Next:
    """What may be done about segments that no manifest names; by any process, one attempt at a time."""
    me = s.sweeper
    gen = s.runs[me.r].ticket + 1

    def to(at: str, state: State = s) -> State:
        return state._replace(sweeper=Sweeper() if at == "idle" else me._replace(at=at))

    match me.at:
        case "idle":
            yield from _suspects(rules, s)
        case "look" if _is_named(s, me.n, me.r):
            yield "sweeper finds a manifest", to("idle")
        case "look":
            at = "note" if me.fenced and rules.note else "delete"
            yield "sweeper finds no manifest", to(at)
        case "note":
            at = "look again" if rules.second_look else "delete"
            noted = s._replace(swept=s.swept | {(me.n, gen)})
            yield f"sweeper notes {me.n}-{gen}", to(at, noted)
        case "look again":
            yield "sweeper looks again", to("idle" if _is_named(s, me.n, me.r) else "delete")
        case "delete":
            rest = s._replace(seg=s.seg - {(me.n, me.r)})
            yield f"sweeper deletes run{me.r}'s segments of {me.n}", to("idle", rest)


def _suspects(rules: Rules, s: State) -> Next:
    for n, r in sorted(s.seg):
        generation = s.runs[r].ticket + 1
        holder = f"run{s.gens[generation - 1]}" if generation <= len(s.gens) else None
        found = fate(Writer(f"run{r}", generation, holder), len(s.gens))
        if not rules.fence and found == "open":
            found = "fenced"
        if found != "open":
            suspect = Sweeper("look", n, r, found == "fenced")
            yield f"sweeper finds run{r} {found}", s._replace(sweeper=suspect)


def _is_named(s: State, n: int, r: int) -> bool:
    return any(m == n and s.gens[g - 1] == r for m, g, _ in s.man)


# --- flushers -------------------------------------------------------------------------------------


def fl_steps(rules: Rules, s: State, f: int) -> Next:
    """What flusher f may do next, in its target."""
    if f % rules.targets == 0:
        yield from _fl_steps(rules, s, f)
    else:
        for label, reached in _fl_steps(rules, swapped(s), f):
            yield label, swapped(reached)


def _fl_steps(rules: Rules, s: State, f: int) -> Next:  # noqa: C901, PLR0912 - a list of steps
    me = s.fls[f]

    def to(fl: Fl, state: State = s) -> State:
        return state._replace(fls=(*state.fls[:f], fl, *state.fls[f + 1 :]))

    if me.at != "idle":
        yield f"flusher{f} crashes", to(Fl())
    match me.at:
        case "idle":
            if (
                s.ledger is not None
                and s.ledger.flushed == rules.epochs - 1 == _recorded(s)
                and not s.man
            ):
                return
            listed = frozenset() if rules.commits_first else s.man
            yield f"flusher{f} begins a pass", to(Fl("commits", listed=listed, known=me.known))
        case "commits":
            yield f"flusher{f} reads commits/", to(me._replace(at="ledger", com=committed(s)))
        case "ledger":
            at = "list" if rules.sweeper or rules.purges else "decide"
            seen = me._replace(at=at, recorded=s.recorded, ledger=s.ledger)
            yield f"flusher{f} reads the ledger", to(seen._replace(known=None))
            if me.known is not None and me.known.flushed == _recorded(s):
                yield f"flusher{f} knows the ledger", to(seen._replace(ledger=me.known))
        case "list":
            at = "notes" if rules.purges else "decide"
            yield f"flusher{f} lists the manifests", to(me._replace(at=at, listed=s.man))
        case "notes":
            noted = me._replace(at="decide", notes=Notes(s.kept, s.swept))
            yield f"flusher{f} reads the notes", to(noted)
        case "decide":
            separate = rules.sweeper or rules.purges or not rules.commits_first
            yield from _decide(rules, s, f, me, me.listed if separate else s.man)
        case "settle":
            assert me.window is not None
            yield from _settle(s, f, me, me.window)
        case "begin":
            assert me.window is not None
            yield from _begin(rules, s, f, me.window)
        case "pass":
            listed_now = me._replace(at="write", passed=s.quarantine)
            yield f"flusher{f} lists the quarantine", to(listed_now)
        case "again":
            assert me.window is not None
            yield from _begin_again(rules, s, f, me.window)
        case "write":
            assert me.window is not None
            yield from _write(rules, s, f, me.window)


def _settle(s: State, f: int, me: Fl, window: Window) -> Next:
    """Note a choice for both targets, unless there is one."""
    mine = {(begun.epoch, begun.generation) for begun in window.epochs}
    there = {n for n, _ in s.decided}
    decided = s.decided | {choice for choice in mine if choice[0] not in there}
    fl = Fl("begin", window=window, seen=me.seen) if mine <= decided else Fl()
    fls = (*s.fls[:f], fl, *s.fls[f + 1 :])
    yield f"flusher{f} notes its choice", s._replace(decided=decided, fls=fls)


def _recorded(s: State) -> int:
    return s.recorded.epoch if s.recorded else -1


def _decide(  # noqa: C901, PLR0912 - a list of steps
    rules: Rules, s: State, f: int, me: Fl, listed: frozenset[tuple[int, int, int]]
) -> Next:
    def to(fl: Fl, state: State) -> State:
        return state._replace(fls=(*state.fls[:f], fl, *state.fls[f + 1 :]))

    who = f"flusher{f}"
    told, limit = _told(rules, s, me, listed), _limit(rules, s)
    try:
        step = decide(
            rules, me.com, me.recorded, me.ledger, told, s.gens, limit, known=me.known is not None
        )
    except LedgerShadowed:
        assert s.hidden
        yield f"{who} stops at the ledger row", to(Fl(), s)
        return
    match step:
        case Idle(why):
            yield f"{who} rests: {why}", to(Fl(known=me.known), s)
        case CreateLedger(flushed):
            if flushed > -1:
                raise BrokenError("lost")
            yield (
                f"{who} creates the ledger",
                to(Fl(), s._replace(ledger=s.ledger or new_row(flushed))),
            )
        case RecordFlushed(window):
            begun = next(
                (epoch for epoch in window.epochs if epoch.epoch > _recorded(s)), window.epochs[-1]
            )
            record = flushed_record(begun, window, NOW)
            newest = max(s.recorded, record, key=lambda r: r.epoch) if s.recorded else record
            yield (
                f"{who} records {begun.epoch}",
                to(Fl(known=me.ledger if rules.knows else None), s._replace(recorded=newest)),
            )
        case Trim(epochs):
            n = epochs[0]
            rest = s._replace(
                seg=frozenset(x for x in s.seg if x[0] != n),
                man=frozenset(x for x in s.man if x[0] != n),
                kept=frozenset(x for x in s.kept if x[0] > n),
                swept=frozenset(x for x in s.swept if x[0] > n),
                decided=frozenset(x for x in s.decided if x[0] != n),
            )
            yield f"{who} trims {n}", to(Fl(known=me.known), rest)
        case Resume(window):
            if not rules.names_all and (chosen := _again(rules, me, listed, s)) is not None:
                window = chosen
            if not rules.sendings or window.sending != rules.sendings:
                at = "again" if window.sent_once and rules.raised else "write"
                at = "pass" if rules.refuses else at
                yield f"{who} resumes {window.first}", to(Fl(at, window=window, seen=me.ledger), s)
        case ManifestMissing(n):
            if not rules.swallows:
                yield from _without_manifest(rules, s, f, n)
        case Begin(attempts):
            assert me.ledger is not None
            window = plan(rules, attempts, me.ledger, s.gens, listed, s.emp, f)
            at = "begin" if rules.begin else "write"
            at = "settle" if s.other is not None and rules.chosen else at
            taken = Fl(at, window=window, seen=me.ledger)
            yield f"{who} takes {[*map(tuple, attempts)]}", to(taken, s)
        case _:
            raise AssertionError(step)


def _limit(rules: Rules, s: State) -> int | None:
    """Return the last epoch that may be trimmed: what the other target has; None: all that is recorded."""
    if s.other is None or not rules.slowest:
        return None
    return s.other.recorded.epoch if s.other.recorded else -1


def _told(rules: Rules, s: State, me: Fl, listed: frozenset[tuple[int, int, int]]) -> Told:
    """Return what a flusher knows of attempts as it decides."""
    again = listed | s.man if rules.relists else listed
    decided = s.decided if rules.chosen else frozenset()
    return Told(listed, again, me.notes or Notes(s.kept, s.swept), decided, s.first)


def _again(
    rules: Rules, me: Fl, listed: frozenset[tuple[int, int, int]], s: State
) -> Window | None:
    """Choose the epochs of a window anew, as if nothing was begun: what `begin` has to prevent."""
    assert me.ledger is not None
    unbegun = msgspec.structs.replace(me.ledger, begun=None)
    step = decide(rules, me.com, me.recorded, unbegun, _told(rules, s, me, listed), s.gens)
    return (
        plan(rules, step.attempts, unbegun, s.gens, listed, s.emp, 9)
        if isinstance(step, Begin)
        else None
    )


def _without_manifest(rules: Rules, s: State, f: int, n: int) -> Next:
    ledger = s.ledger
    # Else the next pass finds that the epoch was flushed and trimmed.
    if ledger is None or ledger.flushed < n:
        if rules.publish_empty:
            raise BrokenError("no manifest")
        assert ledger is not None
        if s.com[n] is not None and (n, s.com[n]) not in s.emp:
            raise BrokenError("lost")
        if ledger.flushed == n - 1 and ledger.begun is None:
            last = plan(rules, (Attempt(n, 0),), ledger, s.gens, frozenset(), s.emp, f)
            ledger = msgspec.structs.replace(ledger, flushed=n, last=last)
        s = s._replace(ledger=ledger)
    yield f"flusher{f} takes {n} for empty", s._replace(fls=(*s.fls[:f], Fl(), *s.fls[f + 1 :]))


def _updated(rules: Rules, s: State, new: LedgerState) -> LedgerState:
    """Return the row as it is seen after an update that took effect."""
    if s.hidden and s.ledger is not None:
        return msgspec.structs.replace(new, **{rules.hides: getattr(s.ledger, rules.hides)})
    return new


def _begin(rules: Rules, s: State, f: int, window: Window) -> Next:
    ledger, outcome, seen = s.ledger, Outcome.CONFLICT, s.fls[f].seen
    assert ledger is not None
    assert seen is not None
    named = window if rules.names_all else msgspec.structs.replace(window, epochs=window.epochs[:1])
    new = begin(seen, named)
    free = ledger.flushed == window.first - 1 and ledger.begun is None
    if ledger == seen if rules.whole else free:
        ledger, outcome = _updated(rules, s, new), Outcome.APPLIED
    fl = Fl()
    if is_mine(outcome, window, ledger):
        at = "pass" if rules.refuses else "write"
        fl = Fl(at, window=window, seen=new if outcome is Outcome.APPLIED else ledger)
    state = s._replace(ledger=ledger, fls=(*s.fls[:f], fl, *s.fls[f + 1 :]))
    yield f"flusher{f} begins {window.first}: {outcome.value}", state


def _begin_again(rules: Rules, s: State, f: int, before: Window) -> Next:
    """Begin another sending of a window, as long as the ledger says what was seen (rule 15)."""
    ledger, seen = s.ledger, s.fls[f].seen
    assert ledger is not None
    assert seen is not None
    again = next_sending(before, NOW, f"flusher{f}")
    if not rules.above_all:
        epochs = (msgspec.structs.replace(e, base_us=e.base_us + 1) for e in before.epochs)
        again = msgspec.structs.replace(again, epochs=tuple(epochs))
    outcome = Outcome.APPLIED if ledger == seen else Outcome.CONFLICT
    new = begin(seen, again)
    if outcome is Outcome.APPLIED and rules.announced:
        ledger = new
    won = is_mine(outcome, again, ledger) or not rules.announced
    fl = Fl("write", window=again, seen=new) if won else Fl()
    state = s._replace(ledger=ledger, fls=(*s.fls[:f], fl, *s.fls[f + 1 :]))
    yield f"flusher{f} begins sending {again.sending}: {outcome.value}", state


def _write(rules: Rules, s: State, f: int, window: Window) -> Next:
    me = s.fls[f]
    ledger = s.ledger
    assert ledger is not None

    def to(fl: Fl, state: State = s) -> State:
        return state._replace(fls=(*state.fls[:f], fl, *state.fls[f + 1 :]))

    if rules.staged and me.row and not me.twice:
        twice = 0 if rules.kept_apart else me.row
        yield f"flusher{f} stages again after an error", to(me._replace(row=0, twice=twice))
    elif rules.atomic and rules.one_transaction and me.row > me.lost:
        again = me._replace(row=0) if rules.starts else me._replace(lost=me.row)
        yield f"flusher{f} loses its transaction", to(again)
    row, begun = _next_row(window, me.row)
    n, run = begun.epoch, s.gens[begun.generation - 1]
    if row == begun.rows:
        if not rules.trim_after_finish and any(x[0] == n for x in s.seg) and ledger.flushed < n:
            rest = frozenset(x for x in s.seg if x[0] != n)
            yield f"flusher{f} trims {n} before finish", to(me, s._replace(seg=rest))
            return
        if rules.staged and not s.was_late:
            late = s._replace(late=Late(window, not rules.keeps_unknown), was_late=True)
            became = after_finish(window, ledger, applied=False, atomic=True)
            fl = Fl("write", window=window, seen=ledger) if became == "again" else Fl()
            yield f"flusher{f} gets no answer to finish {window.last}: {became}", to(fl, late)
        yield from _finish(rules, s, f, window)
        return
    if (n, run) not in s.seg:
        if ledger.flushed < n:
            raise BrokenError("missing segment")
        yield f"flusher{f} finds {n} flushed", to(Fl())
        return
    written = Row(n, run, row, begun.base_us + row)
    if rules.sendings:
        yield from _send(rules, s, f, written)
        return
    did, reached = _row(rules, s, me, written)
    yield f"flusher{f} {did} row {row} of run{run} at {n}", to(me._replace(row=me.row + 1), reached)


def _row(rules: Rules, s: State, me: Fl, row: Row) -> tuple[str, State]:
    """Write a row, or skip it, as one that is in quarantine, or that the target refuses."""
    if row[:3] in me.passed:
        return "skips", s
    if rules.refuses and row.row == 0 and not s.repaired:
        kept = s.quarantine | {row[:3]} if rules.kept_first else s.quarantine
        return "keeps the refused", s._replace(quarantine=kept)
    if rules.atomic and rules.one_transaction:
        return "writes", s
    return "writes", _shown(rules, s, row)


def _send(rules: Rules, s: State, f: int, written: Row) -> Next:
    """Write a row with a list; or give up waiting for its answer, and it may arrive at any time."""
    me = s.fls[f]

    def to(fl: Fl, state: State) -> State:
        return state._replace(fls=(*state.fls[:f], fl, *state.fls[f + 1 :]))

    sent = Listed(written.us, written.n, written.row)
    wrote = f"flusher{f} writes row {written.row} at {written.n}"
    on = me._replace(row=me.row + 1)
    yield wrote, to(on, _arrived(rules, _shown(rules, s, written), sent))
    if sent not in s.on_their_way:
        late = s._replace(on_their_way=s.on_their_way | {sent})
        yield f"{wrote}: no answer", to(Fl() if rules.sends_once else me, late)


def _arrived(rules: Rules, s: State, sent: Listed) -> State:
    """Write a list as the server does: delete what is older than the row, then add an element of its own."""
    deleted_us = max(s.deleted_us, sent.us - 1)
    listed = tuple(sorted(each for each in (*s.listed, sent) if each.us > deleted_us))
    if len(listed) > 1:
        raise BrokenError("a list is doubled")
    done = s._replace(listed=listed, deleted_us=deleted_us)
    _see_list(rules, done)
    return done


def _see_list(rules: Rules, s: State) -> None:
    """See that the list is that of what is flushed, or of what is being written."""
    ledger = s.ledger
    if not rules.sendings or ledger is None or ledger.flushed < 0:
        return
    last = [each for each in s.listed if each.epoch == ledger.flushed and each.row == ROWS - 1]
    if not last and (ledger.begun is None or any(e.epoch <= ledger.flushed for e in s.listed)):
        raise BrokenError("an old value wins")


def arriving_steps(rules: Rules, s: State) -> Next:
    """What may become of requests that no flusher waits for: each arrives, at any time."""
    for sent in sorted(s.on_their_way):
        left = s._replace(on_their_way=s.on_their_way - {sent})
        yield f"row {sent.row} at {sent.epoch} arrives late", _arrived(rules, left, sent)


def _shown(rules: Rules, s: State, written: Row) -> State:
    """Let readers see a row."""
    n, run, row, us = written
    if s.com[n] is None:
        raise BrokenError("uncommitted epoch")
    if us - row > NOW + CLOCKS_DIFFER_US + rules.epochs * ROWS:
        raise BrokenError("a row of the future")
    if rules.atomic and (run, row) in s.seen[n]:
        raise BrokenError("a row is doubled")
    seen = s.seen[n] | {(run, row)}
    if len({who for who, _ in seen}) > 1:
        raise BrokenError("two attempts mixed")
    if s.other is not None and any(who != run for who, _ in s.other.seen[n]):
        raise BrokenError("two histories")
    if s.com[n] != run and rules.judged:
        raise BrokenError("attempt that Spark did not keep")
    cell, there = (us, n), s.cells[row]
    if cell[0] == there[0] and cell[1] != there[1] and not rules.atomic:
        raise BrokenError("an old value wins")  # of two with one timestamp the larger one
    cell = cell if rules.atomic else max(there, cell)
    cells = (*s.cells[:row], cell, *s.cells[row + 1 :])
    return s._replace(seen=(*s.seen[:n], seen, *s.seen[n + 1 :]), cells=cells)


def _next_row(window: Window, written: int) -> tuple[int, BegunEpoch]:
    """Return which row of which epoch comes after so many rows of a window; the row after the last."""
    for begun in window.epochs[:-1]:
        if written < begun.rows:
            return written, begun
        written -= begun.rows
    return written, window.epochs[-1]


def _finish(rules: Rules, s: State, f: int, window: Window) -> Next:
    ledger, outcome, seen = s.ledger, Outcome.CONFLICT, s.fls[f].seen
    assert ledger is not None
    same = ledger == seen
    if not (rules.begin and rules.names_all and rules.newest_finishes and rules.announced):
        begun = ledger.begun is not None and ledger.begun.first == window.first
        same = ledger.flushed == window.first - 1 and (begun or not rules.begin)
    if same or not rules.conditional:
        outcome = Outcome.APPLIED
        if rules.atomic:
            s = _committed(rules, s, window, s.fls[f].lost)
            if s.fls[f].twice:
                raise BrokenError("a row is doubled")
        new = finish(msgspec.structs.replace(ledger, begun=window))
        ledger = _updated(
            rules, s, msgspec.structs.replace(new, last_us=max(new.last_us, ledger.last_us))
        )
        _look_at_finished(rules, s, window)
    label = f"flusher{f} finishes {window.last}: {outcome.value}"
    if rules.begin and rules.names_all and rules.announced:
        applied = outcome is Outcome.APPLIED
        try:
            became = after_finish(window, ledger, applied=applied, atomic=rules.atomic)
        except LedgerShadowed:
            assert s.hidden or s.rewound, "also where it stood still over a rewind"
            became = "superseded"
            if applied and not rules.reads_back:
                raise BrokenError("recorded, and the ledger does not say so") from None
        assert s.hidden or became == ("finished" if ledger.last == window else "superseded")
    done = s._replace(ledger=ledger, fls=(*s.fls[:f], Fl(), *s.fls[f + 1 :]))
    _see_list(rules, done)
    yield label, done


def _look_at_finished(rules: Rules, s: State, window: Window) -> None:
    """See that the rows of a window are there when the mark moves over it, and no older ones win."""
    n = window.last
    for begun in window.epochs:
        keeper = s.com[begun.epoch]
        if keeper is not None and (begun.epoch, keeper) in s.emp and begun.rows:
            raise BrokenError("attempt that Spark did not keep")
        if keeper is not None and (begun.epoch, keeper) not in s.emp and not begun.rows:
            raise BrokenError("lost")
        if rules.refuses:
            _look_for(s, begun.epoch, s.gens[begun.generation - 1])
    kept = {row for epoch, _, row in s.quarantine if epoch == n}
    old = [row for row, (_, epoch) in enumerate(s.cells) if epoch < n and row not in kept]
    if window.epochs[-1].rows and old:
        raise BrokenError("an old value wins")


def late_steps(rules: Rules, s: State) -> Next:
    """What may become of a `finish` that its flusher no longer waits for: it arrives, at any time."""
    ledger, late = s.ledger, s.late
    if late is None or ledger is None:
        return
    s = s._replace(late=None)
    if ledger.begun != late.window and rules.conditional:
        yield "a late finish is refused", s
        return
    if late.gone:
        raise BrokenError("lost")
    s = _committed(rules, s, late.window, 0)
    yield "a late finish takes effect", s._replace(ledger=finish(ledger))


def _committed(rules: Rules, s: State, window: Window, lost: int) -> State:
    """Let readers see the rows of a transaction: all of a window but the first so many."""
    rows = [(begun, row) for begun in window.epochs for row in range(begun.rows)]
    for begun, row in rows[lost:] if rules.one_transaction else ():
        s = _shown(
            rules, s, Row(begun.epoch, s.gens[begun.generation - 1], row, begun.base_us + row)
        )
    if any(len(s.seen[begun.epoch]) != begun.rows for begun in window.epochs):
        raise BrokenError("lost")
    return s


# --- what is refused ------------------------------------------------------------------------------


def _look_for(s: State, n: int, run: int) -> None:
    """See that each row of an attempt is in the table or in quarantine."""
    for row in range(ROWS):
        if (run, row) not in s.seen[n] and (n, run, row) not in s.quarantine:
            raise BrokenError("lost")


def operator_steps(rules: Rules, s: State) -> Next:
    """What an operator may do to a target that refuses rows, and to the ledger."""
    if rules.refuses and not s.repaired:
        yield "the target is repaired", s._replace(repaired=True)
    if rules.rewinds:
        yield from _rewind(s)
    if rules.hides and not s.hidden and s.ledger is not None:
        yield f"a write of the future hides {rules.hides}", s._replace(hidden=True)


def _rewind(s: State) -> Next:
    """Set the ledger back to the begin, where all is in the log."""
    ledger = s.ledger
    if s.rewound or ledger is None or ledger.flushed < 0 or ledger.begun is not None:
        return
    whole = all(any(n == x[0] for x in s.man) for n in range(ledger.flushed + 1))
    if whole and all(fl.at in ("idle", "pass", "write") for fl in s.fls):
        back = msgspec.structs.replace(ledger, flushed=-1, last=None)
        set_back = s._replace(ledger=back, recorded=None, rewound=True)
        yield "rewind sets the ledger back", set_back


# --- the real functions, on views of the state ----------------------------------------------------


class Told(NamedTuple):
    """What a flusher knows of attempts."""

    listed: frozenset[tuple[int, int, int]]
    again: frozenset[tuple[int, int, int]]
    """Listed after the notes."""
    notes: Notes
    decided: frozenset[tuple[int, int]]
    """What stands for both targets."""
    first: int | None
    """The log's first epoch."""


def _attempts(listed: frozenset[tuple[int, int, int]]) -> tuple[Attempt, ...]:
    return tuple(sorted(Attempt(n, g) for n, g, _ in listed))


@cache
def decide(
    rules: Rules,
    com: int,
    recorded: FlushedEpoch | None,
    ledger: LedgerState | None,
    told: Told,
    gens: tuple[int, ...],
    trimmable: int | None = None,
    *,
    known: bool = False,
) -> Step:
    """Ask `next_step`, and `choose`, about what a flusher has read."""
    attempts = _attempts(told.listed)
    identity = None if told.first is None else _identity(told.first)
    flushed = recorded.epoch if recorded else -1
    observed = Observation(
        com,
        recorded,
        identity,
        asked=identity is not None,
        row=ledger,
        attempts=attempts,
        trimmable=flushed if trimmable is None else trimmable,
        known=known,
    )
    if not rules.torn and ledger is not None and ledger.last is not None:
        last = ledger.last if ledger.last.last == ledger.flushed else None
        observed = replace(observed, row=msgspec.structs.replace(ledger, last=last))
    step = next_step(observed, OWNER)
    if not isinstance(step, Choose):
        return step
    steps = islice(following(step, com), rules.window)
    return merged(_chosen(rules, each, told, gens) for each in steps)


def _identity(first: int) -> LogIdentity:
    return LogIdentity(log_id="log", checkpoint="checkpoint", first_epoch=first)


def _chosen(rules: Rules, step: Choose, told: Told, gens: tuple[int, ...]) -> Choice:
    notes = told.notes
    for n, g in told.decided:
        if n == step.epoch:
            listed = (a for a in _attempts(told.listed) if a.epoch == n)
            read = {a: Published(_manifest(a, gens, told.listed, frozenset()), "-") for a in listed}
            chosen = Chosen(epoch=n, generation=g, digest="-", offsets_digest="offsets")
            return as_chosen(chosen, read)
    contenders = tuple(
        Contender(attempt, f"run{gens[attempt.generation - 1]}", "offsets")
        for attempt in _attempts(told.listed)
        if attempt.epoch == step.epoch
    )
    if rules.lowest and contenders:
        return Begin((min(contender.attempt for contender in contenders),))
    proofs = tuple(
        CommitProof(epoch=n, generation=g, run_id=f"run{gens[g - 1]}", highest=highest)
        for n, g, highest in sorted(notes.kept)
        if n == step.epoch
    )
    return choose(
        Evidence(
            epoch=step.epoch,
            attempts=_attempts(told.again),
            contenders=contenders,
            proofs=proofs if rules.proof else (),
            tombstones=frozenset(Attempt(n, g) for n, g in notes.swept),
            running=contenders[0].run_id if rules.proof and rules.patient and contenders else None,
        )
    )


@cache
def plan(
    rules: Rules,
    attempts: tuple[Attempt, ...],
    ledger: LedgerState,
    gens: tuple[int, ...],
    listed: frozenset[tuple[int, int, int]],
    emp: frozenset[tuple[int, int]],
    f: int,
) -> Window:
    """Ask `new_window`."""
    manifests = [Published(_manifest(attempt, gens, listed, emp), "digest") for attempt in attempts]
    before = ledger if rules.chained else msgspec.structs.replace(ledger, last_us=0)
    now_us = bounded_now(rules.flusher_us, [NOW] if rules.bounded else [])
    once = rules.sendings > 0
    return new_window(manifests, before, now_us, f"flusher{f}", sent_once=once)


def _manifest(
    attempt: Attempt,
    gens: tuple[int, ...],
    listed: frozenset[tuple[int, int, int]],
    emp: frozenset[tuple[int, int]],
) -> Manifest:
    n, g = attempt
    us = max((us for m, h, us in listed if (m, h) == (n, g)), default=0)
    empty = g == 0 or (n, gens[g - 1]) in emp
    segments = () if empty else (SegmentRef(path="s", rows=ROWS, bytes=1, digest="d"),)
    return Manifest(
        epoch=n,
        generation=g,
        query_id="query",
        run_id=f"run{g}",
        nonce="",
        plan="",
        segments=segments,
        offsets="",
        offsets_digest="offsets",
        published_us=us,
    )


@cache
def new_row(flushed: int) -> LedgerState:
    """Return the ledger row as it is created."""
    return LedgerState(
        log_id="log", checkpoint="checkpoint", flushed=flushed, last_us=0, begun=None, last=None
    )


# --- the search -----------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a search found."""

    states: int
    complete: bool
    broken: dict[str, list[str]]
    """The first, so the shortest, way to break each invariant."""
    flushed: int
    """States in which everything is flushed."""


def explore(rules: Rules, most: int = 400_000, until: str | None = None) -> Found:
    """Visit every state.

    :param until: stop when this invariant is broken.
    """
    gc.disable()  # states refer to no later ones: it would look through all of them for nothing
    try:
        return _explore(rules, most, until)
    finally:
        gc.enable()


def _explore(rules: Rules, most: int, until: str | None) -> Found:
    first = start(rules)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    todo = deque([first])
    broken: dict[str, list[str]] = {}
    flushed = 0
    while todo and len(came_from) < most and until not in broken:
        state = todo.popleft()
        flushed += state.ledger is not None and state.ledger.flushed == rules.epochs - 1
        for actor in (
            *(run_steps(rules, state, r) for r in range(rules.runs)),
            *(fl_steps(rules, state, f) for f in range(rules.flushers)),
            *((sweeper_steps(rules, state),) if rules.sweeper else ()),
            *((late_steps(rules, state),) if rules.staged else ()),
            *(
                (operator_steps(rules, state),)
                if rules.refuses or rules.rewinds or rules.hides
                else ()
            ),
            *((arriving_steps(rules, state),) if rules.sendings else ()),
        ):
            try:
                for label, reached in actor:
                    if reached not in came_from:
                        came_from[reached] = (state, label)
                        todo.append(reached)
            except BrokenError as error:
                broken.setdefault(str(error), [*path(came_from, state), f"=> {error}"])
    return Found(len(came_from), not todo, broken, flushed)


def path(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    """Return the steps that led to a state."""
    steps: list[str] = []
    before = came_from[state]
    while before is not None:
        steps.append(before[1])
        before = came_from[before[0]]
    return steps[::-1]
