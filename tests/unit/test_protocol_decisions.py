"""What the flusher decides on values made by hand: errors, lost answers, and what histories rarely show."""

from __future__ import annotations

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
from wal_sink.model.manifest import (
    Attempt,
    Manifest,
    Offsets,
    Published,
    SegmentRef,
    parse_offsets,
)
from wal_sink.model.records import CommitProof, FlushedEpoch, LogIdentity
from wal_sink.protocol.attempts import Contender, Evidence, choose
from wal_sink.protocol.ledger import (
    after_finish,
    is_mine,
    new_window,
    new_window_without_rows,
)
from wal_sink.protocol.next_step import (
    Begin,
    ManifestMissing,
    Observation,
    PassOver,
    RecordsBehind,
    Step,
    idle_step,
    next_step,
    refuse_missing_records,
)

OWNER = Owner("query", "log", "file:///checkpoint")
NOW = 1_700_000_000_000_000
ABSENT = None


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
    return next_step(view(checkpointed, record, ledger, attempts, first), OWNER)


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


def test_the_remedy_for_a_log_that_was_made_anew_can_be_carried_out() -> None:
    """Epochs before its first one cannot be flushed from it, so no `rewind` to before them is named."""
    with pytest.raises(LedgerBehindLog, match="never had epochs 5 to 6") as caught:
        step(7, None, row(4), [(7, 1)], first=7)
    assert "`wal-sink rewind CHECKPOINT --to 6`" in caught.value.remedy
    assert "--to 4" not in caught.value.remedy


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
        (4, row(6), CorruptLog, "epoch 6 is flushed, the log records only 4"),
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


PLANNED = parse_offsets('v1\n{"conf":{"spark.sql.shuffle.partitions":"2"}}\n5', "offsets/5")


@pytest.mark.parametrize("line", ["", "{", "[1]", '{"conf":[]}', '{"conf":{"x":"y"}}'])
def test_offsets_that_do_not_tell_their_partitions(line: str) -> None:
    """Nothing is taken for a repartition then."""
    odd = parse_offsets(f"v1\n{line}\n5", "there")
    assert odd.partitions is None
    assert odd.digest == PLANNED.digest
    assert not odd.repartitions(PLANNED)
    assert not PLANNED.repartitions(odd)


# --- choose --------------------------------------------------------------------------------------


def batch(source: int, ms: int, partitions: int) -> Offsets:
    """What Spark writes as `offsets/<epoch>`."""
    conf = f'{{"spark.sql.shuffle.partitions":"{partitions}"}}'
    return parse_offsets(f'v1\n{{"batchTimestampMs":{ms},"conf":{conf}}}\n{source}', "offsets/5")


ONE, TWO = Attempt(5, 1), Attempt(5, 2)
BEFORE, THIS = batch(4, 4, 2), batch(5, 5, 2)
GONE_BACK = (Contender(ONE, "run 1", "others"), Contender(TWO, "run 2", THIS.digest))
PROOF = CommitProof(epoch=5, generation=2, run_id="run 2", highest=2)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        # all have given way, which cannot be: one is taken all the same
        ({"gave_way": frozenset({"run 1", "run 2"})}, Begin((TWO,), proven=False)),
        # the segments of all were deleted
        ({"tombstones": frozenset({ONE, TWO})}, ManifestMissing(5)),
        # but one is proven, where Spark has gone back behind the other one's source offsets
        (
            {"tombstones": frozenset({TWO}), "proofs": (PROOF,), "contenders": GONE_BACK},
            Begin((TWO,)),
        ),
        # a copy of the batch before it with other partitions, and one that has another time
        ({"offsets": batch(4, 4, 8)}, PassOver(5, 2, BEFORE.digest)),
        ({"offsets": batch(4, 5, 8)}, Begin((TWO,), proven=False)),
    ],
)
def test_what_is_chosen_of_two_attempts(known: dict[str, Any], expected: Step) -> None:
    """Rules 11, 12 and 18, where next to nothing proves either of them."""
    offsets = known.get("offsets", THIS)
    contenders = tuple(
        Contender(attempt, f"run {attempt.generation}", offsets.digest) for attempt in (ONE, TWO)
    )
    plain = {"offsets": offsets, "before": (BEFORE, None), "contenders": contenders}
    evidence = Evidence(epoch=5, attempts=(ONE, TWO), **{**plain, **known})
    assert choose(evidence) == expected


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


@pytest.mark.parametrize(("now", "base"), [(200, 200), (100, 101), (50, 101)])
def test_an_epoch_that_is_passed_over_uses_up_a_timestamp(now: int, base: int) -> None:
    """So that the timestamps of what follows still grow, also where the clock was ahead before."""
    planned = new_window_without_rows(PassOver(5, 3, "digest"), row(4, last_us=100), now, "nonce")
    assert (planned.epochs[0].base_us, planned.last_us) == (base, base)


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
