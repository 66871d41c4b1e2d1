"""`wal-sink accept-gap`: go on over an epoch whose manifest is lost."""

from __future__ import annotations

from rich.markup import escape

from wal_sink.cli.arguments import (
    Begun,
    CheckpointArgument,
    EpochArgument,
    OptionPairs,
    Wal,
    Why,
    Yes,
    now_us,
    option_values,
)
from wal_sink.cli.confirm import confirm
from wal_sink.cli.output import AsJson, document, output
from wal_sink.operate import accept_gap as verb
from wal_sink.operate.query import find_query, target_of


def accept_gap(
    checkpoint: CheckpointArgument,
    epoch: EpochArgument,
    *,
    begun: Begun = False,
    why: Why = "",
    wal: Wal = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give up an epoch that is checkpointed and has no manifest in the log.

    The decision is recorded in the log, and the flusher goes on with the next epoch. Its rows are lost.
    """
    with output(as_json=as_json) as console:
        given = option_values(option)
        query = find_query(checkpoint, wal, given)
        plan = verb.plan_accept_gap(query, target_of(query, given), epoch, begun=begun)
        confirm(plan.consequences, yes=yes)
        done = verb.accept_gap(plan, now_us(), why)
        if as_json:
            document(done)
        else:
            console.print(
                f"Epoch {epoch} is given up. Recorded in {escape(done.record)}.", soft_wrap=True
            )
