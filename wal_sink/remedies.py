"""The commands that errors tell the operator to run; a test compares them with the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

VERIFY = "`wal-sink verify CHECKPOINT` says what else is wrong."
ADOPT = "`wal-sink adopt CHECKPOINT`"
LEDGER_TABLE = "TARGET.ledgerTable"
"""The option that names the ledger's table, of any target."""


def skip(epoch: int | None, *, begun: bool = False) -> str:
    """Name the command that gives an epoch up and keeps what the log holds of it.

    :param begun: rows of it may be in the table.
    """
    return f"`wal-sink skip CHECKPOINT {_number(epoch)} --to URL{' --begun' if begun else ''}`"


def skip_lost(epoch: int) -> str:
    """Name the command that gives an epoch up whose manifest is lost."""
    return f"`wal-sink skip CHECKPOINT {epoch}`"


def rewind(epoch: int, options: str = "") -> str:
    """Say how to set ledger and log to an epoch, with more options if need be.

    The command refuses while a flusher is alive.
    """
    command = f"`wal-sink rewind CHECKPOINT --to {epoch}{options}`"
    return f"stop the query and every other flusher, then run {command}"


def reset_timestamps(epoch: int) -> str:
    """Say how to bring the timestamps of a query back from the future.

    :param epoch: the last one that is flushed.
    """
    return rewind(epoch, " --reset-timestamps")


def lost_manifest(epoch: int) -> str:
    """Say what to do about a manifest that cannot be used."""
    return _restore_or(epoch, skip(epoch))


def lost_segment(epoch: int | None, *, begun: bool = False) -> str:
    """Say what to do about a segment that cannot be used."""
    return _restore_or(epoch, skip(epoch, begun=begun))


def restored(flushed: int | None) -> str:
    """Say what to do where the ledger row may follow another log than this one (rule 23).

    :param flushed: the last epoch that this log says is flushed.
    """
    to = "FLUSHED" if flushed is None else str(flushed)
    return (
        "If checkpoint and log were restored from a backup: stop the query and every other flusher, then run"
        f" `wal-sink rewind CHECKPOINT --to {to}`. It makes the ledger follow this log; what the log holds"
        f" after epoch {to} is flushed. If they are a copy: start the copy with a new checkpoint."
    )


def left_behind(log: str, epochs: Sequence[int]) -> str:
    """Say what to do about the log of a checkpoint that was deleted.

    :param epochs: those that are published in it and not flushed.
    """
    if not epochs:
        return f"What is left of it in {log} can be deleted."
    waits = (
        f"Epoch {epochs[0]} is" if len(epochs) == 1 else f"Epochs {epochs[0]} to {epochs[-1]} are"
    )
    return (
        f"{waits} in {log}, not flushed, and nothing flushes them now: Resetting a query, in"
        " docs/operations.md, says how to. If they are not wanted, delete that folder."
    )


def open_to_others(log: str) -> str:
    """Say that a log in a local folder can be read by every user of the host, and how to close it."""
    folder = log.removeprefix("file://")
    return (
        f"every user of this host can get into {log}, which holds rows. What is written from now on belongs"
        f" to its user alone; for what is there already: chmod -R go= {shlex.quote(folder)}"
    )


def _restore_or(epoch: int | None, command: str) -> str:
    return (
        f"Restore the file from a copy of the log. If there is none, give epoch {_number(epoch)} up:"
        f" {command} keeps its other files, and the flush goes on without it. {VERIFY}"
    )


def _number(epoch: int | None) -> str:
    return "EPOCH" if epoch is None else str(epoch)
