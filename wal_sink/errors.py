"""Every way in which wal_sink stops, named by what the operator does next.

One base, :class:`WalSinkError`. An error carries two texts: what happened, and the remedy. `exit_code` is
what the command line returns for it; kinds that call for the same reaction share a code. A flusher swallows
no error and tries again after each; one that is not transient is also raised to callers that wait for the
flush (rule 21).

The constants below are the commands that remedies name; a test compares them with the command line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any


class WalSinkError(Exception):
    """Base of all errors of wal_sink.

    :param what: what happened, naming the option, column, file or epoch.
    :param remedy: what the reader does next, as one or more imperative sentences.
    """

    exit_code = 1
    transient = False
    """Whether it may pass by itself. A flusher tries every error again; one that is not transient is also
    raised to those who wait (rule 21)."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    @property
    def summary(self) -> str:
        """The kind and what happened, without the remedy."""
        return f"{type(self).__name__}: {self.what}"

    @property
    def one_line(self) -> str:
        """Everything in one line of a log."""
        ended = re.sub(r"([^\s.:;!?])\s*\n\s*(What to do:)", r"\1. \2", str(self))
        return " ".join(ended.split())

    def __str__(self) -> str:
        return f"{self.what}\n  What to do: {self.remedy}" if self.remedy else self.what


# --- exit code 2: correct the call ---------------------------------------------------------------


class OptionError(WalSinkError):
    """An option, or an argument, is missing, unknown or cannot mean anything."""

    exit_code = 2


class UnsupportedSpark(WalSinkError):
    """This Spark session lacks something that the sink relies on."""

    exit_code = 2


# --- exit code 3: correct the schema or the data -------------------------------------------------


class SchemaMismatch(WalSinkError):
    """The DataFrame does not fit the table, or the table cannot be written exactly once."""

    exit_code = 3


class InvalidRow(WalSinkError):
    """A row that the target would refuse, found in the task, before anything is published.

    :param column: the column that is to blame, as the DataFrame names it; empty where there is no single one.
    :param problem: what is wrong, without the row and its value; default: `what`.
    :param rows: which rows of the batch have this problem, a boolean Arrow array; None: the check does not
        say, and `publish.split_invalid` finds them one by one.
    """

    exit_code = 3

    def __init__(
        self, what: str, remedy: str = "", *, column: str = "", problem: str = "", rows: Any = None
    ) -> None:
        super().__init__(what, remedy)
        self.column = column
        self.problem = problem or what
        self.rows = rows
        self.target = ""
        """Name of the one of several targets that would refuse it."""


class TargetRefused(WalSinkError):
    """The target refuses a statement, and would refuse it again."""

    exit_code = 3


# --- exit code 4: wait, or see to the target or the flusher --------------------------------------


class TargetUnavailable(WalSinkError):
    """The target cannot be reached, or does not answer in time."""

    exit_code = 4
    transient = True


class FlushTimeout(WalSinkError):
    """What was checkpointed is not in the target yet, and the time to wait for it is over."""

    exit_code = 4


class NotDrained(WalSinkError):
    """`close()` could not flush everything that was checkpointed; names each query and why."""

    exit_code = 4


class NoFlusher(WalSinkError):
    """Epochs wait to be flushed and no process flushes them, or their target is not attached."""

    exit_code = 4


class LogFull(WalSinkError):
    """The log has no room for an epoch: its budget is used up, or the disk is. Nothing is lost."""

    exit_code = 4


class StoppedWaiting(WalSinkError):
    """The query was told to stop while an epoch waited for room; Spark computes it anew."""

    exit_code = 4


# --- exit code 5: find the other run -------------------------------------------------------------


class Fenced(WalSinkError):
    """A newer run of the query exists: this one is a zombie and must stop (rules 3, 5, 7)."""

    exit_code = 5


class AlreadyPublished(WalSinkError):
    """The same run published the same epoch twice with different contents (rule 6)."""

    exit_code = 5


class WrongOwner(WalSinkError):
    """The checkpoint, the log and the ledger row do not belong together (rule 1)."""

    exit_code = 5


class FlusherAtWork(WalSinkError):
    """A flusher of the query is alive, or has just moved the ledger: an operator's command waits."""

    exit_code = 5


class NotRegistered(WalSinkError):
    """The run has no ticket: it was started where `wal_sink.register` was not listening (rule 2)."""

    exit_code = 5


# --- exit code 6: see to the log or the checkpoint -----------------------------------------------


class MissingManifest(WalSinkError):
    """A checkpointed epoch has no manifest; it is never taken for an empty one (rule 12)."""

    exit_code = 6


class MissingSegment(WalSinkError):
    """A manifest names a segment that is gone while the ledger says it is needed (rule 20)."""

    exit_code = 6


class SegmentNotVisible(WalSinkError):
    """`commit()` does not see a segment that a task wrote: the log is not shared."""

    exit_code = 6


class CorruptLog(WalSinkError):
    """An object of the log is not what was written, or is written by a newer version."""

    exit_code = 6


class LogUnavailable(WalSinkError):
    """The store of the log, or of the checkpoint, answers with an error."""

    exit_code = 6
    transient = True


class CheckpointNotVisible(WalSinkError):
    """The query's checkpoint cannot be read where the sink looks for it (rule 0)."""

    exit_code = 6


class UnknownOffsetsFormat(WalSinkError):
    """Spark wrote an offsets file in a format that this version does not know (rule 5)."""

    exit_code = 6


# --- exit code 7: decide which history is right --------------------------------------------------


class Diverged(WalSinkError):
    """Under one epoch id there are two different histories (rules 5, 18 and 23)."""

    exit_code = 7


class LedgerBehindLog(WalSinkError):
    """The ledger knows less than the log: a restored backup or a truncated table (rules 13, 19)."""

    exit_code = 7


class LedgerShadowed(WalSinkError):
    """An acknowledged update of the ledger is not there when read (rule 16)."""

    exit_code = 7


VERIFY = "`wal-sink verify CHECKPOINT` says what else is wrong."
ADOPT = "`wal-sink adopt CHECKPOINT`"
LOST_IDENTITY = "Restore it from a copy of the log."
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
