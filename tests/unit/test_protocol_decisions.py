"""What the flusher decides, on values made by hand: one table for each pure function of `protocol`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.records import begun_epoch, flushed_epoch
from wal_sink.errors import (
    CorruptLog,
    Diverged,
    LedgerBehindLog,
    LedgerShadowed,
    WalSinkError,
    WrongOwner,
)
from wal_sink.model.ledger import BegunEpoch, LedgerState, Outcome, Owner, Window
from wal_sink.model.manifest import Attempt, Manifest, Offsets, Published, SegmentRef, parse_offsets
from wal_sink.model.records import CommitProof, FlushedEpoch, LogIdentity
from wal_sink.protocol.attempts import Contender, Evidence, Writer, choose, doubts, fate
from wal_sink.protocol.ledger import (
    after_finish,
    bounded_now,
    is_mine,
    new_window,
    new_window_without_rows,
)
from wal_sink.protocol.next_step import (
    Begin,
    Choose,
    CreateLedger,
    Idle,
    ManifestMissing,
    Observation,
    PassOver,
    RecordFlushed,
    RecordsBehind,
    Resume,
    Step,
    Trim,
    idle_step,
    next_step,
    refuse_missing_records,
)

OWNER = Owner("query", "log", "file:///checkpoint")
NOW = 1_700_000_000_000_000
ABSENT = None


def offsets(sources: str, us: int = 1, partitions: int | None = 2) -> Offsets:
    """What Spark writes as `offsets/<epoch>`."""
    conf = {} if partitions is None else {"spark.sql.shuffle.partitions": str(partitions)}
    line = json.dumps({"batchTimestampMs": us, "conf": {"other": "x", **conf}})
    return parse_offsets(f"v1\n{line}\n{sources}", "offsets/5")


PLANNED = offsets("5", 5)


def begun(epoch: int, rows: int = 1) -> BegunEpoch:
    more = {"digest": "digest", "offsets_digest": "offsets", "bytes": rows, "published_us": NOW}
    return begun_epoch(epoch, base_us=NOW + epoch, rows=rows, **more)


def window(*epochs: int, nonce: str = "mine") -> Window:
    return Window(nonce=nonce, begun_us=NOW, epochs=tuple(begun(epoch) for epoch in epochs))


def row(flushed: int, **changes: object) -> LedgerState:
    plain = LedgerState(
        log_id=OWNER.log_id,
        checkpoint=OWNER.checkpoint,
        flushed=flushed,
        last_us=0,
        begun=None,
        last=None,
    )
    return msgspec.structs.replace(plain, **changes)


def recorded(epoch: int | None) -> FlushedEpoch | None:
    times = dict.fromkeys(("base_us", "published_us", "begun_us", "recorded_us"), NOW)
    return None if epoch is None else flushed_epoch(epoch, offsets_digest="offsets", **times)


def identity(first: int | None) -> LogIdentity | None:
    if first is None:
        return None
    return LogIdentity(log_id=OWNER.log_id, checkpoint=OWNER.checkpoint, first_epoch=first)


def step(
    checkpointed: int,
    record: int | None,
    ledger: LedgerState | None,
    attempts: list[tuple[int, int]],
    first: int | None = 0,
) -> Step:
    seen = view(checkpointed, record, ledger, attempts, first)
    found = next_step(seen, OWNER)
    if isinstance(found, Choose):
        assert found.attempts == seen.attempts
        return choose(evidence(found.epoch, *seen.attempts))
    return found


def view(
    checkpointed: int,
    record: int | None,
    ledger: LedgerState | None,
    attempts: list[tuple[int, int]],
    first: int | None = 0,
) -> Observation:
    seen = tuple(Attempt(*attempt) for attempt in attempts)
    asked = idle_step(checkpointed, recorded(record), identity(first)) is None
    return Observation(
        *(checkpointed, recorded(record), identity(first)),
        asked=asked,
        row=ledger,
        attempts=seen,
        trimmable=-1 if record is None else record,
    )


def evidence(epoch: int, *attempts: Attempt, **changes: Any) -> Evidence:
    """What is known of an epoch when nothing but its manifests is."""
    plain = Evidence(
        epoch=epoch,
        attempts=attempts,
        contenders=tuple(
            Contender(attempt, f"run {attempt.generation}", PLANNED.digest)
            for attempt in attempts
            if attempt.epoch == epoch
        ),
        offsets=PLANNED,
    )
    return dataclasses.replace(plain, **changes)


# --- idle_step ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpointed", "record", "first", "why"),
    [
        (-1, ABSENT, ABSENT, "never started"),
        (7, ABSENT, ABSENT, "never started"),
        (-1, ABSENT, 0, "nothing is checkpointed"),
        (2, ABSENT, 3, "nothing is checkpointed"),
        (0, 0, 0, "is flushed"),
        (7, 7, 3, "is flushed"),
    ],
)
def test_there_is_nothing_to_flush(
    checkpointed: int, record: int | None, first: int | None, why: str
) -> None:
    """Before the first publish, before the first commit of ours, and when all is flushed."""
    idle = idle_step(checkpointed, recorded(record), identity(first))
    assert idle is not None
    assert why in idle.why
    assert not idle.warn


@pytest.mark.parametrize(
    ("checkpointed", "record", "first"), [(0, ABSENT, 0), (3, ABSENT, 3), (8, 7, 0), (99, 7, 0)]
)
def test_there_is_something_to_flush(checkpointed: int, record: int | None, first: int) -> None:
    """Something of ours is checkpointed that no record covers; only then the target is asked."""
    assert idle_step(checkpointed, recorded(record), identity(first)) is None


@pytest.mark.parametrize(("checkpointed", "first"), [(4, 0), (0, 0), (3, 3), (-1, 0), (2, 3)])
def test_a_checkpoint_that_was_set_back_is_warned_of(checkpointed: int, first: int) -> None:
    """Rule 19: what is flushed is more than what is checkpointed, and an operator should know."""
    idle = idle_step(checkpointed, recorded(5), identity(first))
    assert idle is not None
    assert idle.warn
    assert "set back" in idle.why


def test_records_without_an_owner_are_refused() -> None:
    """A log that lost log.json is not taken for a new one."""
    with pytest.raises(CorruptLog, match=r"log\.json is gone while flushed/ records epoch 5"):
        idle_step(9, recorded(5), None)


# --- next_step ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpointed", "record", "ledger", "attempts", "expected"),
    [
        # the ledger does not know the query yet (rule 13)
        (0, ABSENT, ABSENT, [(0, 1)], CreateLedger(-1)),
        # the next epoch, and nothing else (rule 10); of several attempts the highest (rule 11)
        (0, ABSENT, row(-1), [(0, 1)], Begin((Attempt(0, 1),))),
        (9, 4, row(4), [(5, 1), (6, 1)], Begin((Attempt(5, 1),))),
        (9, 4, row(4), [(5, 1), (5, 9), (5, 10), (6, 10)], Begin((Attempt(5, 10),))),
        (9, 4, row(4), [(5, 1), (5, 9), (6, 10)], Begin((Attempt(5, 9),), proven=False)),
        # what is begun is finished first, whatever was published since (rules 10 and 14)
        (9, 4, row(4, begun=window(5)), [(5, 1), (5, 2)], Resume(window(5))),
        (9, 4, row(4, begun=window(5, 6)), [], Resume(window(5, 6))),
        # the ledger is ahead of the log: a flusher died before it wrote the record (rule 17)
        (0, ABSENT, row(0, last=window(0)), [(0, 1)], RecordFlushed(window(0))),
        (9, 4, row(5, last=window(5)), [(5, 1), (6, 1)], RecordFlushed(window(5))),
        (9, 4, row(7, last=window(5, 6, 7)), [], RecordFlushed(window(5, 6, 7))),
        (9, 5, row(7, last=window(5, 6, 7)), [], RecordFlushed(window(5, 6, 7))),
        # the record comes before what is begun after it
        (9, 4, row(5, last=window(5), begun=window(6)), [], RecordFlushed(window(5))),
        # what is flushed leaves the log before the next epoch begins (rule 18)
        (9, 4, row(4), [(4, 1), (5, 1)], Trim((4,))),
        (9, 4, row(4), [(2, 7), (4, 1), (5, 1)], Trim((2, 4))),
        (9, 4, row(4, begun=window(5)), [(4, 1), (5, 1)], Trim((4,))),
        # a checkpointed epoch has no manifest (rule 12)
        (9, 4, row(4), [], ManifestMissing(5)),
        (9, 4, row(4), [(6, 1), (7, 1)], ManifestMissing(5)),
    ],
)
def test_what_comes_next(
    checkpointed: int,
    record: int | None,
    ledger: LedgerState | None,
    attempts: list[tuple[int, int]],
    expected: Step,
) -> None:
    """Each step, in the order in which they are looked at."""
    assert step(checkpointed, record, ledger, attempts) == expected


def test_a_sink_that_joins_late_starts_at_its_first_epoch() -> None:
    """Epochs before the first publish are not ours: neither missing nor flushed by us."""
    assert step(7, None, None, [(7, 1)], first=7) == CreateLedger(6)
    assert step(7, None, row(6), [(7, 1)], first=7) == Begin((Attempt(7, 1),))


def test_the_remedy_for_a_log_that_was_made_anew_can_be_carried_out() -> None:
    """Epochs before its first one cannot be flushed from it, so no `rewind` to before them is named."""
    with pytest.raises(LedgerBehindLog, match="never had epochs 5 to 6") as caught:
        step(7, None, row(4), [(7, 1)], first=7)
    assert "`wal-sink rewind CHECKPOINT --to 6`" in caught.value.remedy
    assert "--to 4" not in caught.value.remedy


@pytest.mark.parametrize("checkpointed", [4, 3, -1])
def test_what_is_flushed_is_trimmed_also_while_idle(checkpointed: int) -> None:
    """The target is not asked for it: no ledger was read."""
    assert step(checkpointed, 4, None, [(3, 1), (4, 2)]) == Trim((3, 4))
    assert isinstance(step(checkpointed, 4, None, []), Idle)


def test_what_is_not_checkpointed_is_left_alone() -> None:
    """A published epoch without `commits/N` is neither begun nor trimmed (rule 8)."""
    assert isinstance(step(4, 4, None, [(5, 1)]), Idle)
    assert isinstance(step(-1, None, None, [(0, 1)]), Idle)


@pytest.mark.parametrize(
    ("record", "ledger", "error", "match"),
    [
        (
            4,
            ABSENT,
            LedgerBehindLog,
            "no row for query query, (.|\n)*none of the rows up to epoch 4",
        ),
        (4, row(3), LedgerBehindLog, "epoch 3 is flushed, the log says 4"),
        (ABSENT, row(-2), LedgerBehindLog, "begins with epoch 0: it never had epochs -1 to -1"),
        (4, row(4, log_id="other"), WrongOwner, "log other, and the log of .* is another one"),
        (4, row(4, checkpoint="file:///copy"), WrongOwner, "of checkpoint file:///copy"),
        # whose row it is comes before what it says
        (4, row(3, log_id="other"), WrongOwner, "belongs to log other"),
        # a ledger row that contradicts itself
        (4, row(6), CorruptLog, "epoch 6 is flushed, and its last window is None"),
        (4, row(6, last=window(5)), CorruptLog, "epoch 6 is flushed, and its last window is"),
        (
            4,
            row(4, last=window(3)),
            LedgerShadowed,
            "of other epochs: begun is nothing, last is 3 to 3",
        ),
        (
            4,
            row(4, begun=window(6)),
            LedgerShadowed,
            "of other epochs: begun is 6 to 6, last is nothing",
        ),
    ],
)
def test_what_stops_the_line(
    record: int | None, ledger: LedgerState | None, error: type[WalSinkError], match: str
) -> None:
    """Ledger and log contradict each other: nothing is guessed, and the remedy is said."""
    with pytest.raises(error, match=match) as caught:
        step(9, record, ledger, [(5, 1)])
    assert caught.value.remedy


# --- choose ---------------------------------------------------------------------------------------

ONE, TWO, THREE = Attempt(5, 1), Attempt(5, 2), Attempt(5, 3)


def proof(generation: int, highest: int, run_id: str | None = None) -> CommitProof:
    """A note that a fenced run left about epoch 5."""
    return CommitProof(
        epoch=5, generation=generation, run_id=run_id or f"run {generation}", highest=highest
    )


@pytest.mark.parametrize(
    ("attempts", "known", "taken"),
    [
        ([ONE], {}, ONE),
        ([ONE], {"running": "run 1"}, ONE),
        # a later manifest proves the highest generation
        ([ONE, TWO, Attempt(6, 2)], {"running": "run 2"}, TWO),
        ([ONE, TWO, Attempt(9, 2)], {"running": "run 2"}, TWO),
        # a note of a fenced run
        ([ONE, TWO], {"proofs": (proof(1, highest=2),)}, ONE),
        ([ONE, TWO, THREE], {"proofs": (proof(2, highest=3),)}, TWO),
        ([ONE, TWO], {"proofs": (proof(2, highest=7),), "running": "run 2"}, TWO),
        # a progress event
        ([ONE, TWO], {"committed": "run 1"}, ONE),
        ([ONE, TWO], {"committed": "run 2", "running": "run 2"}, TWO),
        # all others ended because another run had written `commits/5`
        ([ONE, TWO], {"gave_way": frozenset({"run 2"})}, ONE),
        ([ONE, TWO, THREE], {"gave_way": frozenset({"run 1", "run 3"})}, TWO),
        ([ONE], {"gave_way": frozenset({"run 1"})}, ONE),
        # which is weaker than that one has gone on
        ([ONE, TWO, Attempt(6, 2)], {"gave_way": frozenset({"run 2"})}, TWO),
        # published late, after its segments had gone (rule 18)
        ([ONE, TWO], {"tombstones": frozenset({TWO})}, ONE),
        ([ONE, TWO], {"tombstones": frozenset({TWO}), "running": "run 2"}, ONE),
        ([ONE, TWO, THREE], {"tombstones": frozenset({ONE, THREE})}, TWO),
        # the checkpoint was set back in between: of two proofs the later one counts
        ([ONE, TWO, Attempt(6, 2)], {"proofs": (proof(1, highest=2),)}, TWO),
    ],
)
def test_the_attempt_that_is_proven(
    attempts: list[Attempt], known: dict[str, Any], taken: Attempt
) -> None:
    """Rule 11: the one whose run wrote `commits/N`."""
    assert choose(evidence(5, *attempts, **known)) == Begin((taken,))


def test_of_those_that_have_not_lost_the_highest_is_taken() -> None:
    """Two are left, and nothing tells them apart."""
    known = evidence(5, ONE, TWO, THREE, gave_way=frozenset({"run 3"}))
    assert choose(known) == Begin((TWO,), proven=False)
    assert isinstance(choose(dataclasses.replace(known, running="run 1")), Idle)
    assert choose(dataclasses.replace(known, running="run 3")) == Begin((TWO,), proven=False)


@pytest.mark.parametrize(
    ("attempts", "known"),
    [
        ([ONE, TWO], {}),
        # the epoch before, and epochs of other runs, say nothing
        ([Attempt(4, 2), ONE, TWO, Attempt(6, 3)], {}),
        # a lower generation has gone on, and a higher one published after it: it was set back
        ([ONE, TWO, Attempt(6, 1)], {}),
        # the note is older than an attempt: it was set back
        ([ONE, TWO], {"proofs": (proof(1, highest=1),)}),
        # another run under the same number, an event of a run that has not published
        ([ONE, TWO], {"proofs": (proof(1, highest=2, run_id="other"),)}),
        ([ONE, TWO], {"committed": "other"}),
        # all have lost, which cannot be
        ([ONE, TWO], {"gave_way": frozenset({"run 1", "run 2"})}),
    ],
)
def test_without_a_proof_a_living_run_is_waited_for(
    attempts: list[Attempt], known: dict[str, Any]
) -> None:
    """While a run that published it lives here; else the highest is taken, and that is said."""
    for alive in ("run 1", "run 2"):
        rest = choose(evidence(5, *attempts, **known, running=alive))
        assert isinstance(rest, Idle)
        assert "epoch 5" in rest.why
    for gone in (None, "run 3"):
        step = choose(evidence(5, *attempts, **known, running=gone))
        assert step == Begin((TWO,), proven=False)
        assert "unproven" in doubts(step, None)[0]


def test_what_was_swept_proves_nothing_and_is_never_taken() -> None:
    """Rule 18: of what is left the highest is taken, unproven; with nothing left the manifest is missing."""
    two_left = evidence(5, ONE, TWO, THREE, tombstones=frozenset({THREE}))
    assert choose(two_left) == Begin((TWO,), proven=False)
    assert choose(evidence(5, ONE, TWO, tombstones=frozenset({ONE, TWO}))) == ManifestMissing(5)
    # A later manifest proves the highest generation only, and that published it, though late.
    later = evidence(5, ONE, TWO, THREE, Attempt(6, 2), tombstones=frozenset({THREE}))
    assert choose(later) == Begin((TWO,), proven=False)


@pytest.mark.parametrize(
    ("claimed_by", "highest", "expected"),
    [
        (None, 2, "open"),  # it may claim its generation yet
        ("run", 3, "open"),  # it has, and no run is newer
        ("run", 4, "fenced"),
        (None, 4, "fenced"),  # its claim was forgotten
        ("other", 3, "void"),
        ("other", 4, "void"),
    ],
)
def test_what_may_become_of_segments_that_no_manifest_names(
    claimed_by: str | None, highest: int, expected: str
) -> None:
    """Rule 18: their run alone could publish them, under its generation."""
    assert fate(Writer("run", 3, claimed_by), highest) == expected


def test_a_generation_that_falls_is_said() -> None:
    """From one epoch to the next; nothing else is said of a proven choice."""
    assert doubts(Begin((ONE,)), None) == []
    assert doubts(Begin((ONE,)), recorded(4)) == []
    higher = recorded(4)
    assert higher is not None
    (said,) = doubts(Begin((ONE,)), msgspec.structs.replace(higher, generation=2))
    assert "falls from 2" in said


def test_what_spark_went_back_behind_is_not_taken() -> None:
    """Rule 12: its source offsets are not those that the checkpoint has for the epoch."""
    other = Contender(THREE, "run 3", "other offsets")
    one = Contender(ONE, "run 1", PLANNED.digest)
    assert choose(evidence(5, ONE, THREE, contenders=(one, other))) == Begin((ONE,))
    assert choose(evidence(5, THREE, contenders=(other,), offsets=None)) == Begin((THREE,))
    with pytest.raises(Diverged, match="Epoch 5"):
        choose(evidence(5, THREE, contenders=(other,)))


BEFORE, EARLIER = offsets("4", 4), offsets("3", 3)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        # the batch is a copy of the one before, with other partitions
        ({"before": (BEFORE, EARLIER), "offsets": offsets("4", 4, 8)}, True),
        (
            {
                "before": (BEFORE, EARLIER),
                "offsets": offsets("4", 4, 8),
                "after": offsets("6", 6, 8),
            },
            True,
        ),
        (
            {
                "before": (BEFORE, EARLIER),
                "offsets": offsets("4", 4, 8),
                "after": offsets("4", 4, 9),
            },
            True,
        ),
        # it is a copy of the one before that: the one in between was passed over
        ({"before": (BEFORE, EARLIER), "offsets": offsets("3", 3, 8)}, True),
        # the next batch is: this one was passed over
        ({"before": (BEFORE, EARLIER), "after": offsets("4", 4, 8)}, True),
        # the next batch copies this one
        ({"before": (BEFORE, EARLIER), "after": offsets("5", 5, 8)}, False),
        # other sources, another time, the same partitions, or none told
        ({"before": (BEFORE, EARLIER), "offsets": offsets("5", 4, 8)}, False),
        ({"before": (BEFORE, EARLIER), "offsets": offsets("4", 5, 8)}, False),
        ({"before": (BEFORE, EARLIER), "offsets": offsets("4", 4, 2)}, False),
        ({"before": (BEFORE, EARLIER), "offsets": offsets("4", 4, None)}, False),
        # purged
        ({"offsets": offsets("4", 4, 8)}, False),
        ({"before": (BEFORE, EARLIER), "offsets": None}, False),
    ],
)
def test_batches_that_spark_makes_without_a_sink(known: dict[str, Any], *, expected: bool) -> None:
    """Rule 12: the offline state repartition, and what it passes over."""
    step = choose(evidence(5, **known))
    if not expected:
        assert step == ManifestMissing(5)
    else:
        current = known.get("offsets", PLANNED)
        assert step == PassOver(5, 0, current.digest)
        assert choose(evidence(5, ONE, TWO, **known)) == PassOver(5, 2, current.digest)


@pytest.mark.parametrize(("now", "last", "base"), [(200, 0, 200), (200, 199, 200), (200, 500, 501)])
def test_an_epoch_without_manifest_uses_up_a_timestamp(now: int, last: int, base: int) -> None:
    """So that the timestamps of what follows still grow."""
    planned = new_window_without_rows(PassOver(5, 3, "digest"), row(4, last_us=last), now, "nonce")
    (begun_,) = planned.epochs
    assert (begun_.epoch, begun_.generation, begun_.manifest, begun_.rows) == (5, 3, "", 0)
    assert (planned.nonce, begun_.base_us, planned.last_us) == ("nonce", base, base)


@pytest.mark.parametrize("line", ["", "{", "[1]", '{"conf":[]}', '{"conf":{"x":"y"}}'])
def test_offsets_that_do_not_tell_their_partitions(line: str) -> None:
    """Nothing is taken for a repartition then."""
    odd = parse_offsets(f"v1\n{line}\n5", "there")
    assert odd.partitions is None
    assert odd.digest == PLANNED.digest
    assert not odd.repartitions(PLANNED)
    assert not PLANNED.repartitions(odd)


# --- new_window ----------------------------------------------------------------------------------


def manifest(epoch: int, rows: int, published_us: int) -> Published:
    """Return a manifest and its digest; the rows are in two segments if that is possible."""
    parts = [rows - rows // 2, rows // 2] if rows > 1 else [rows] * rows
    segments = tuple(SegmentRef(path="s", rows=n, bytes=10 * n, digest="d") for n in parts)
    made = Manifest(
        epoch=epoch,
        generation=3,
        query_id="query",
        run_id="run",
        nonce="n",
        plan="plan",
        segments=segments,
        offsets="v1",
        offsets_digest=f"offsets {epoch}",
        published_us=published_us,
    )
    return Published(made, f"digest {epoch}")


@pytest.mark.parametrize(
    ("published", "now", "last", "base"),
    [
        (100, 200, 0, 100),  # when the rows were computed
        (300, 200, 0, 200),  # never in the flusher's future
        (100, 200, 99, 100),
        (100, 200, 100, 101),  # above what was used before
        (100, 200, 500, 501),  # even if that is the future
        (300, 200, 199, 200),
        (300, 200, 200, 201),
    ],
)
def test_the_base_of_an_epoch(published: int, now: int, last: int, base: int) -> None:
    """Rule 14: max(min(published, now), last + 1)."""
    planned = new_window([manifest(5, 10, published)], row(4, last_us=last), now, "nonce")
    assert [epoch.base_us for epoch in planned.epochs] == [base]


@pytest.mark.parametrize(
    ("ahead_s", "told_s", "now_s"),
    [
        (0, [], 0),
        (10**9, [], 10**9),  # a target without a clock
        (0, [0], 0),
        (59, [0], 59),  # clocks differ a little
        (-(10**9), [0], -(10**9)),  # never later than the flusher's own
        (10**9, [0], 60),
        (61, [0, 0, 0], 60),
        (0, [-(10**9), 0, 0], 0),  # one node of the target is wrong
        (10**9, [10**9, 0, 0], 60),
        (10**9, [0, 10**9], 60),
    ],
)
def test_the_present_is_bounded_by_the_targets_clock(
    ahead_s: int, told_s: list[int], now_s: int
) -> None:
    """Rule 14: min(flusher's, target's + a minute); the target's is the one in the middle."""
    at_us = 1_700_000_000_000_000
    told_us = [at_us + second * 1_000_000 for second in told_s]
    assert bounded_now(at_us + ahead_s * 1_000_000, told_us) == at_us + now_s * 1_000_000


def test_a_window_says_all_that_is_decided() -> None:
    """Attempt, file, digests and sizes of each epoch; chained timestamps; empty ones use up one."""
    planned = new_window(
        [manifest(5, 10, 100), manifest(6, 0, 100), manifest(7, 3, 100), manifest(8, 1, 150)],
        row(4, last_us=99),
        200,
        "nonce",
    )
    assert (planned.nonce, planned.begun_us) == ("nonce", 200)
    assert (planned.first, planned.last, planned.last_us) == (5, 8, 150)
    assert [(e.epoch, e.base_us, e.rows, e.last_us) for e in planned.epochs] == [
        (5, 100, 10, 109),
        (6, 110, 0, 110),
        (7, 111, 3, 113),
        (8, 150, 1, 150),
    ]
    assert planned.epochs[0] == BegunEpoch(
        epoch=5,
        generation=3,
        manifest="manifests/00000000000000000005-000003.json",
        digest="digest 5",
        offsets_digest="offsets 5",
        base_us=100,
        rows=10,
        bytes=100,
        published_us=100,
    )


TIMES = st.integers(min_value=0, max_value=2**53)
EPOCHS = st.lists(st.tuples(st.integers(0, 10**9), TIMES), min_size=1, max_size=4)


@settings(deadline=None)
@given(windows=st.lists(st.tuples(EPOCHS, TIMES), min_size=1, max_size=6), last=TIMES)
def test_timestamps_grow_over_epochs(
    windows: list[tuple[list[tuple[int, int]], int]], last: int
) -> None:
    """Whatever the clocks say: every row of an epoch is above every row of all epochs before."""
    used, epoch = last, 0
    for contents, now in windows:
        manifests = []
        for rows, published in contents:
            manifests.append(manifest(epoch, rows, published))
            epoch += 1
        planned = new_window(manifests, row(epoch, last_us=used), now, "nonce")
        for planned_epoch, (rows, published) in zip(planned.epochs, contents, strict=True):
            assert planned_epoch.base_us == max(min(published, now), used + 1)
            assert planned_epoch.last_us >= planned_epoch.base_us + rows - 1
            used = planned_epoch.last_us
        assert planned.last_us == used


# --- is_mine, after_finish ------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "read_back", "mine"),
    [
        (Outcome.APPLIED, ABSENT, True),
        (Outcome.APPLIED, row(4, begun=window(5, nonce="theirs")), True),
        *[
            (outcome, ledger, mine)
            for outcome in (Outcome.CONFLICT, Outcome.UNKNOWN)
            for ledger, mine in [
                (ABSENT, False),
                (row(4), False),
                (row(4, begun=window(5)), True),
                (row(4, begun=window(5, nonce="theirs")), False),
                (row(4, begun=window(5, 6)), False),
                (row(5, last=window(5)), False),
            ]
        ],
    ],
)
def test_whose_begin_it_was(outcome: Outcome, read_back: LedgerState | None, *, mine: bool) -> None:
    """An answer that is lost, or lies after a retry, is settled by what the ledger shows."""
    assert is_mine(outcome, window(5), read_back) is mine


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize(
    ("ledger", "named"),
    [
        (row(6, last=window(5, 6)), True),
        (row(6, last=window(5, 6), begun=window(7)), True),
        (row(9, last=window(9)), False),
        (row(6, last=window(5, 6, nonce="theirs")), False),
    ],
)
def test_finished_by_whomever(ledger: LedgerState, *, named: bool, applied: bool) -> None:
    """The mark has reached the window's last epoch: but perhaps after a rewind, by another log."""
    became = after_finish(window(5, 6), ledger, applied=applied)
    assert became == ("finished" if applied or named else "superseded")


def test_not_finished_yet() -> None:
    """Still begun, and no answer says that it is not: try again."""
    assert after_finish(window(5, 6), row(4, begun=window(5, 6)), applied=False) == "again"


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize(
    "ledger",
    [
        row(3),
        row(5, last=window(5)),
        row(4, begun=window(5, 6, nonce="theirs")),
        row(4, begun=window(5)),
    ],
)
def test_the_ledger_was_rewound_meanwhile(ledger: LedgerState, *, applied: bool) -> None:
    """The row is neither as it was before the window, nor as after it: the flusher looks again."""
    assert after_finish(window(5, 6), ledger, applied=applied) == "superseded"


@pytest.mark.parametrize(
    ("applied", "ledger"),
    [(True, row(4, begun=window(5, 6))), (True, row(4)), (False, row(4))],
)
def test_a_shadowed_ledger(ledger: LedgerState, *, applied: bool) -> None:
    """Rule 16: an update of `finish` or of `begin` was acknowledged and does not show."""
    with pytest.raises(
        LedgerShadowed, match=r"epoch 6, but its row still says that epoch 4"
    ) as caught:
        after_finish(window(5, 6), ledger, applied=applied)
    assert "write time" in caught.value.remedy
    assert "--to 4 --option TARGET.ledgerTable=NAME`" in caught.value.remedy


@pytest.mark.parametrize(
    ("ledger", "became"),
    [
        (row(4, last=window(4, nonce="theirs")), "superseded"),
        (row(4), "superseded"),
        (row(4, last=window(4)), "shadowed"),
        (row(4, last=window(5, 6)), "shadowed"),
    ],
)
def test_another_log_has_come_to_the_same_epoch(ledger: LedgerState, became: str) -> None:
    """It names a window that was not there before this one. A write may hide a part of the row alone."""
    before = row(4, last=window(4), begun=window(5, 6))

    def look() -> str:
        return after_finish(window(5, 6), ledger, applied=False, before=before)

    if became == "superseded":
        assert look() == became
    else:
        with pytest.raises(LedgerShadowed):
            look()


@pytest.mark.parametrize("last_us", [7, 8])
def test_a_row_that_a_rewind_made_is_not_the_one_before(last_us: int) -> None:
    """Neither names a window; but the rewind has counted the timestamps of the window that was begun."""
    before = row(4, last_us=7, begun=window(5, 6))
    if last_us > before.last_us:
        rewound = row(4, last_us=last_us)
        assert after_finish(window(5, 6), rewound, applied=False, before=before) == "superseded"
    else:
        with pytest.raises(LedgerShadowed):
            after_finish(window(5, 6), row(4, last_us=7), applied=False, before=before)


@pytest.mark.parametrize("applied", [True, False])
def test_the_ledger_row_vanished(*, applied: bool) -> None:
    """The row was deleted: it is not made anew."""
    with pytest.raises(LedgerBehindLog, match="vanished while epoch 6"):
        after_finish(window(5, 6), None, applied=applied)


@pytest.mark.parametrize(("record", "first"), [(4, 6), (None, 1)])
def test_a_gap_between_records_and_ledger_is_looked_at_again(
    record: int | None, first: int
) -> None:
    """The records are read before the ledger: another flusher may have been quick in between."""
    ledger = row(first, last=window(first))
    assert step(9, record, ledger, []) == RecordsBehind(window(first))
    seen = view(9, record, ledger, [])
    refuse_missing_records(window(first), recorded(first - 1), None, seen)
    with pytest.raises(CorruptLog, match=f"records only {-1 if record is None else record}"):
        refuse_missing_records(window(first), recorded(record), None, seen)


@pytest.mark.parametrize(("checkpointed", "attempts"), [(9, [(5, 1)]), (5, [])])
def test_records_that_another_log_has_are_not_asked_for(
    checkpointed: int, attempts: list[tuple[int, int]]
) -> None:
    """Rule 23: Spark has published again what the ledger says is flushed, or has yet to."""
    seen = view(checkpointed, 4, row(6, last=window(6)), attempts)
    with pytest.raises(Diverged, match="epoch 6 is not in this one") as caught:
        refuse_missing_records(window(6), recorded(4), 6, seen)
    assert "rewind CHECKPOINT --to 4" in caught.value.remedy
    with pytest.raises(CorruptLog, match="records only 4"):
        refuse_missing_records(window(6), recorded(4), None, seen)
