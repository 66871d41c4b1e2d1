"""`wal-sink detach` and `wal-sink attach`: a target gets nothing any more, or again."""

from __future__ import annotations

from wal_sink.admin.attach import Attached, plan_attach, plan_detach
from wal_sink.cli.arguments import CheckpointArgument, OptionPairs, TargetName, Wal, Why, Yes
from wal_sink.cli.change import ChangeArguments, make_change
from wal_sink.cli.output import AsJson


def detach(
    checkpoint: CheckpointArgument,
    *,
    target: TargetName = "",
    why: Why = "",
    wal: Wal = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let one of several targets hold back nothing any more.

    The log keeps no epochs for it, and nothing is flushed to it. The query goes on, and may name it or
    not. What it lacks is listed by `verify`.
    """
    make_change(
        ChangeArguments(checkpoint, wal, option, why, yes, as_json, target),
        lambda query, _target, _patience: plan_detach(query),
        lambda done: f"Target {done.target} is detached; it has epochs up to {done.state.epoch}.",
    )


def attach(
    checkpoint: CheckpointArgument,
    *,
    target: TargetName = "",
    why: Why = "",
    wal: Wal = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a target that was detached get epochs again.

    From the first epoch on from which the log has everything; what the target lacks before that stays
    missing there, and is said. The query's newest run has to name it.
    """
    make_change(
        ChangeArguments(checkpoint, wal, option, why, yes, as_json, target),
        lambda query, database, _patience: plan_attach(query, database),
        _summary,
    )


def _summary(done: Attached) -> str:
    text = f"Target {done.target} gets epochs from {done.state.epoch} on."
    if done.missing:
        text += f" It lacks epochs {done.missing[0]} to {done.missing[1]}."
    return text
