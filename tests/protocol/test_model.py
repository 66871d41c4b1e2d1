"""The model of the protocol, explored to the end; and with each rule switched off, until it breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.protocol.cases import covered
from tests.protocol.model import Rules, explore

KEPT, MIXED = "attempt that Spark did not keep", "two attempts mixed"

DOUBLED = "a row is doubled"

STAGED = Rules(epochs=1, runs=1, flushers=2, atomic=True, staged=True)

LISTS = Rules(epochs=1, runs=1, flushers=2, sendings=3)

TWICE = "a list is doubled"

LATE = Rules(epochs=1, runs=3, early=True, herald=True, sweeper=True, patient=False, judged=False)
"""The third run fences the second, which publishes late: without a proof, what is flushed may be the wrong
attempt; but its segments are there."""


SWALLOWED = Rules(swallows=True, zombie=False, judged=False)
"""A function for `foreachBatch` keeps the writer's errors to itself; what an earlier run has published is
flushed in place of what it has kept back."""


REFUSED = Rules(runs=1, refuses=True)
"""A target that refuses rows, until it is repaired."""


KNOWN = Rules(runs=1, flushers=2, rewinds=True, knows=True)
"""A flusher goes on from the ledger row as it has left it, though it may have been rewound since."""


HIDDEN = Rules(epochs=1, hides="flushed", patient=False, judged=False)
"""A cell of the ledger row is dated in the future: updates of it are acknowledged, and never seen. Without a
proof, what is flushed may be the wrong attempt; but nothing is begun twice, nor recorded."""


BOTH = Rules(epochs=1, flushers=2, targets=2, patient=False, judged=False)
"""Two ledgers: without a proof, what is flushed may be the wrong attempt; but it is the same in both."""


@pytest.mark.parametrize(
    ("what", "rules"),
    [
        ("2 runs, 3 epochs", Rules(epochs=3)),
        ("2 runs, 2 epochs with and without rows", Rules(empties=True)),
        ("2 runs, 1 epoch, 2 flushers", Rules(epochs=1, flushers=2)),
        ("2 runs, 2 epochs, commits/ purged", Rules(purges=True)),
        ("3 runs, 1 epoch", Rules(epochs=1, runs=3)),
        ("2 runs, 2 epochs in one window", Rules(window=2)),
        ("1 run, 2 epochs in one window, 2 flushers", Rules(window=2, runs=1, flushers=2)),
        ("2 runs, clocks that go back", Rules(clocks=(9, 0))),
        (
            "2 runs, the clocks of flusher and one run years ahead",
            Rules(clocks=(10**15, 9), flusher_us=10**15),
        ),
        ("2 runs, 2 epochs, orphans swept", Rules(sweeper=True)),
        (
            "2 runs that may claim early, 1 epoch, orphans swept",
            Rules(epochs=1, sweeper=True, early=True),
        ),
        pytest.param(
            "3 runs, 1 epoch, orphans swept, a choice that waits for no proof",
            LATE,
            marks=pytest.mark.test_all,
        ),
        (
            "rows by transaction, 2 runs, 1 epoch, 2 flushers",
            Rules(epochs=1, flushers=2, atomic=True),
        ),
        ("rows by transaction, 2 runs, 2 epochs in one window", Rules(window=2, atomic=True)),
        ("staged rows, 1 run, 1 epoch, 2 flushers, a late commit", STAGED),
        (
            "staged rows, 2 runs, 2 epochs in one window, a late commit",
            replace(STAGED, runs=2, epochs=2, window=2, flushers=1),
        ),
        ("epochs that are not published, 2 runs, 2 epochs", SWALLOWED),
        ("a row that is known, 1 run, 2 epochs, 2 flushers, a rewind", KNOWN),
        ("updates of the mark that are hidden, 2 runs, 1 epoch, no proof", HIDDEN),
        ("updates of what is begun that are hidden, 2 runs, 2 epochs", Rules(hides="begun")),
        ("2 targets, 2 runs, 1 epoch, a choice that waits for no proof", BOTH),
        ("refused rows, 1 run, 1 epoch, 2 flushers", replace(REFUSED, epochs=1, flushers=2)),
        ("refused rows, 2 runs, 1 epoch", replace(REFUSED, runs=2, epochs=1)),
        ("refused rows, 1 run, 2 epochs, a rewind", replace(REFUSED, rewinds=True)),
        ("lists, 1 run, 1 epoch, 2 flushers, late requests, 3 attempts", LISTS),
        pytest.param(
            "lists, 1 run, 2 epochs, 2 flushers, late requests, 2 attempts",
            replace(LISTS, epochs=2, sendings=2),
            marks=pytest.mark.test_all,
        ),
        (
            "one driver at a time, without rule 11's proof",
            Rules(epochs=3, proof=False, zombie=False),
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_every_order_of_steps_is_safe(what: str, rules: Rules) -> None:
    """No order of steps breaks an invariant, and the end is reached in many."""
    found = explore(rules)
    covered(f"model, {what}", f"{found.states:,} states")
    assert found.broken == {}
    assert found.complete
    assert found.flushed > 10


@pytest.mark.parametrize(
    ("rules", "breaks"),
    [
        pytest.param(Rules(proof=False), KEPT, id="11-no-proof-is-waited-for"),
        pytest.param(
            Rules(purges=True, relists=False),
            KEPT,
            id="11-manifests-are-not-listed-again-after-the-notes",
        ),
        pytest.param(
            Rules(lowest=True, zombie=False), KEPT, id="11-the-lowest-generation-is-flushed"
        ),
        pytest.param(
            Rules(ticket="lazy", proof=False, zombie=False),
            KEPT,
            id="2-claimed-at-the-first-commit-without-a-ticket",
        ),
        pytest.param(
            Rules(ticket="planned", proof=False, zombie=False),
            KEPT,
            id="2-the-planner-takes-the-ticket",
        ),
        pytest.param(
            Rules(publish_empty=False, empties=True, zombie=False),
            KEPT,
            id="6-epochs-without-rows-are-not-published",
        ),
        pytest.param(
            Rules(commits_first=False, zombie=False),
            KEPT,
            id="9-manifests-are-listed-before-commits",
        ),
        pytest.param(
            Rules(commits_first=False, zombie=False),
            "no manifest",
            id="9-manifests-are-listed-before-commits-too",
        ),
        pytest.param(
            replace(SWALLOWED, begins=False), "lost", id="12-the-log-begins-with-the-first-publish"
        ),
        pytest.param(Rules(begin=False, proof=False), MIXED, id="14-no-begin"),
        pytest.param(
            Rules(chained=False), "an old value wins", id="14-timestamps-are-fixed-at-publish"
        ),
        pytest.param(
            Rules(clocks=(10**15, 9), flusher_us=10**15, bounded=False, zombie=False),
            "a row of the future",
            id="14-clock-not-bounded-by-the-targets",
        ),
        pytest.param(
            Rules(window=2, flushers=2, names_all=False, proof=False),
            MIXED,
            id="14-begin-names-only-the-first-of-a-window",
        ),
        pytest.param(
            replace(KNOWN, whole=False),
            "an old value wins",
            id="14-begin-compares-not-all-of-the-row",
        ),
        pytest.param(
            Rules(atomic=True, one_transaction=False, zombie=False),
            DOUBLED,
            id="15-rows-in-transactions-of-their-own",
        ),
        pytest.param(
            Rules(atomic=True, starts=False, zombie=False), "lost", id="15-no-start-before-the-rows"
        ),
        pytest.param(
            replace(STAGED, kept_apart=False),
            DOUBLED,
            id="15-receipts-of-a-try-before-are-committed",
        ),
        pytest.param(replace(STAGED, conditional=False), DOUBLED, id="16-finish-from-any-state"),
        pytest.param(
            replace(STAGED, keeps_unknown=False),
            "lost",
            id="16-staged-rows-are-deleted-without-an-answer",
        ),
        pytest.param(
            replace(HIDDEN, reads_back=False),
            "recorded, and the ledger does not say so",
            id="16-the-row-is-not-read-after-finish",
        ),
        pytest.param(replace(HIDDEN, torn=False), MIXED, id="16-begun-from-a-part-of-an-update"),
        pytest.param(
            Rules(trim_after_finish=False, zombie=False),
            "missing segment",
            id="17-trim-before-finish",
        ),
        pytest.param(
            Rules(epochs=1, sweeper=True, fence=False),
            "no manifest",
            id="18-orphans-of-a-run-that-is-not-fenced-go",
        ),
        pytest.param(
            replace(LATE, note=False), "missing segment", id="18-no-note-of-what-was-swept"
        ),
        pytest.param(
            replace(BOTH, chosen=False), "two histories", id="11-each-target-chooses-for-itself"
        ),
        pytest.param(
            replace(BOTH, slowest=False), "missing segment", id="18-trim-by-the-first-target"
        ),
        pytest.param(
            replace(REFUSED, kept_first=False), "lost", id="24-passed-over-before-its-entry"
        ),
        pytest.param(
            replace(LATE, second_look=False), "missing segment", id="18-no-listing-after-the-note"
        ),
        pytest.param(
            replace(LISTS, raised=False), TWICE, id="15-a-window-is-resumed-with-its-timestamps"
        ),
        pytest.param(
            replace(LISTS, above_all=False), TWICE, id="15-timestamps-of-an-attempt-lie-one-above"
        ),
        pytest.param(
            replace(LISTS, announced=False), TWICE, id="15-rows-before-the-ledger-has-their-attempt"
        ),
        pytest.param(
            replace(LISTS, newest_finishes=False),
            "an old value wins",
            id="15-an-attempt-that-was-overtaken-is-finished",
        ),
        pytest.param(replace(LISTS, sends_once=False), TWICE, id="15-a-request-is-sent-again"),
    ],
)
def test_a_rule_that_is_switched_off_is_missed(
    rules: Rules, breaks: str, request: pytest.FixtureRequest
) -> None:
    """The search finds the counter-example that is known for it: the model sees what it should."""
    found = explore(rules, until=breaks)
    assert breaks in found.broken, found
    steps = found.broken[breaks]
    covered(f"model, rule {request.node.callspec.id} off", f"{breaks} after {len(steps) - 1} steps")
