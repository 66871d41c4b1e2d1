"""All errors of wal_sink, ordered by the operator's next step; and remedies that several errors have.

An error has two texts: what happened, and the remedy. Errors with the same `exit_code` need the same
reaction. The reference of errors is made from the docstrings of the classes: what the error means, then what
to do.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from typing import Any

EXIT_CODES = {
    0: "has nothing to do",
    1: "reports a bug (of `demo`: rows are missing, or too many)",
    2: "corrects the call",
    3: "corrects the schema or the data",
    4: "waits, or repairs the target or the flusher",
    5: "finds the other run",
    6: "repairs the log or the checkpoint",
    7: "decides which history is right",
}
"""What the operator does, by the exit code of a command."""


class WalSinkError(Exception):
    """The base of all errors of wal_sink. An error of this class itself is a bug.

    The log keeps what is not flushed.

    What to do: report it, with the text and the output of `wal-sink status CHECKPOINT --deep --json`.

    :param what: what happened, naming the option, column, file or epoch.
    :param remedy: what the reader does next, as one or more imperative sentences.
    """

    exit_code = 1
    """The exit code of a command that ends with this error, see `EXIT_CODES`."""
    transient = False
    """True if the error may pass by itself. A flusher tries again after every error. `await_flushed` also
    raises an error that is not transient (rule `stop`)."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    @property
    def summary(self) -> str:
        """The name of the class and what happened, without the remedy."""
        return f"{type(self).__name__}: {self.what}"

    @property
    def one_line(self) -> str:
        """All texts in one line, for a log."""
        ended = re.sub(r"([^\s.:;!?])\s*\n\s*(What to do:)", r"\1. \2", str(self))
        return " ".join(ended.split())

    def __str__(self) -> str:
        return f"{self.what}\n  What to do: {self.remedy}" if self.remedy else self.what


# --- exit code 2: correct the call ---------------------------------------------------------------


class OptionError(WalSinkError):
    """An option, or an argument of a command or function, is missing, unknown, or has a wrong value.

    A login that the target refuses raises this error, too. If the sink does not support the trigger or the
    mode of a query, the start of the query raises this error. Nothing is lost: the source or the log has the
    rows.

    What to do: Correct what the text names, and start the query or the command again. After a change of a
    password, set the new password in the environment, which the flusher reads at each try.
    """

    exit_code = 2


class UnsupportedSpark(WalSinkError):
    """This Spark session lacks something that the sink needs. Nothing was started.

    Possible causes: a `newSession()` of a registered session, a version of Spark in which an internal name
    has changed, or `batch_writer` in a Spark Connect session.

    What to do: Register the first session, install a tested version of Spark, or use a classic session on
    the driver.
    """

    exit_code = 2


# --- exit code 3: correct the schema or the data -------------------------------------------------


class SchemaMismatch(WalSinkError):
    """The DataFrame does not fit the table, or the table cannot be written exactly once.

    If a start raises this error, no micro-batch has been computed. If a flush raises it, the table was
    altered while epochs were pending. The log keeps these epochs.

    What to do: At the start, do what the error says for each column. In a running query, change the table
    back. The flush then continues by itself. Change table and DataFrame together after `wal-sink status
    CHECKPOINT` shows no lag.
    """

    exit_code = 3


class InvalidRow(WalSinkError):
    """The target would refuse a row. A task found the row before anything was published.

    Examples are a null in the key, a number that does not fit, and a text that is not UTF-8. The query has
    stopped. It stops at the same row after each start.

    What to do: Filter or repair such rows in the query, and start it again with the same checkpoint. Or
    set `onInvalidRow` to `quarantine`; then export such rows, repair them, and write them by a query of your
    own.

    :param column: the column with the problem, as the DataFrame names it; empty unless it is a single column.
    :param problem: what is wrong, without the row and its value; default: `what`.
    :param rows: a boolean Arrow array, True for each row of the batch with this problem; None if the check
        does not know the rows. `publish.append.split_invalid` then finds them one by one.
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
        """Name of the target that would refuse the row, if there are several targets."""


class TargetRefused(WalSinkError):
    """The target refuses a statement, and would refuse it again.

    The table is gone, a permission is missing, or a row breaks a rule that only the server checks. The log
    keeps everything.

    What to do: Repair the table, the role or the rule. The flush then continues by itself. If the table can
    never get the epoch: `wal-sink give-up CHECKPOINT --epoch EPOCH`, which keeps the epoch's files in the
    log.
    """

    exit_code = 3


# --- exit code 4: wait, or repair the target or the flusher --------------------------------------


class TargetUnavailable(WalSinkError):
    """The target cannot be reached, or does not answer in time.

    The query continues, and the log grows. The flusher tries again at least every 10 seconds. When the target
    answers, the flush catches up by itself.

    What to do: Nothing, if this is an outage. Watch the free space of the log. If only this host has no
    connection, run `wal-sink flush CHECKPOINT` on another host.
    """

    exit_code = 4
    transient = True


class FlushTimeout(WalSinkError):
    """`await_flushed` reached its timeout before everything was in the target.

    The log keeps the other epochs. The text has the last error of the flusher.

    What to do: Wait longer, or repair the cause of that error, which `wal-sink status CHECKPOINT` prints,
    too.
    """

    exit_code = 4


class NotDrained(WalSinkError):
    """`close()`, or the end of the `with` block, could not finish the flush.

    An error stopped the flush, or the timeout was over. The text names each query with the cause. An
    interrupted `wal-sink flush` also raises this error. The log keeps the rest.

    What to do: Repair the cause. Then start the query again, or run `wal-sink flush CHECKPOINT`.
    """

    exit_code = 4


class NoFlusher(WalSinkError):
    """Epochs are pending, and no process flushes them. The log keeps them.

    What to do: Start the query again under `wal_sink.register(spark)`, or run `wal-sink flush CHECKPOINT
    --follow`.
    """

    exit_code = 4


class LogFull(WalSinkError):
    """The log has no space for an epoch: its budget is used up, or the disk is full.

    The query has failed. Nothing is lost: Spark computes the epoch again.

    What to do: Find out why the flush lags: `wal-sink status CHECKPOINT`. Free space or raise
    `wal.maxBytes`, and start the query again.
    """

    exit_code = 4


class StoppedWaiting(WalSinkError):
    """The query was stopped while an epoch waited for space in the log.

    Nothing is lost: Spark computes the epoch again at the next start.

    What to do: Nothing.
    """

    exit_code = 4


# --- exit code 5: find the other run -------------------------------------------------------------


class Fenced(WalSinkError):
    """Another run of the query has started, so this run must stop (rule `one-publisher`).

    Two drivers ran on one checkpoint. Rows of an attempt that Spark did not complete are not flushed.

    What to do: Find out why there were two drivers, and let one of them run. If both have ended, start one
    driver again.
    """

    exit_code = 5


class AlreadyPublished(WalSinkError):
    """The same run published the same epoch twice with different contents (rule `publish`).

    The first manifest stays. With `batch_writer`, the function wrote one batch twice.

    What to do: With `batch_writer`, combine the rows by `df.union(…)` and write once. Otherwise make sure
    that only one driver runs, and start it again. If the error occurs again, report a bug.
    """

    exit_code = 5


class WrongOwner(WalSinkError):
    """The checkpoint, the log and the ledger row do not belong together (rule `identity`).

    `wal.location` was changed, or a checkpoint was copied, moved, or deleted and made again. Nothing was
    written.

    What to do: Set the option back. Start a copy with a new checkpoint. After a move: `wal-sink adopt
    CHECKPOINT`.
    """

    exit_code = 5


class FlusherAtWork(WalSinkError):
    """A flusher of the query is alive, so an operator's command cannot run.

    Nothing was changed.

    What to do: Stop the query and every `wal-sink flush`, and run the command again.
    """

    exit_code = 5


# --- exit code 6: repair the log or the checkpoint -----------------------------------------------


class MissingManifest(WalSinkError):
    """A checkpointed epoch has no manifest in the log (rule `order`). Its rows are at risk.

    A file of the log was deleted; or, with `batch_writer`, the function did not write that batch. The flush
    has stopped before the epoch. The log keeps later epochs.

    What to do: Restore `manifests/` from a copy of the log. If there is none: `wal-sink give-up CHECKPOINT
    --epoch EPOCH`.
    """

    exit_code = 6


class MissingSegment(WalSinkError):
    """A segment that a manifest names is gone (rule `order`). The rows of its epoch are at risk.

    The flush has stopped before that epoch. The log keeps later epochs.

    What to do: Restore the file from a copy of the log. If there is none: `wal-sink give-up
    CHECKPOINT --epoch EPOCH`.
    """

    exit_code = 6


class SegmentNotVisible(WalSinkError):
    """`commit()` on the driver does not find a segment that a task wrote.

    The hosts have different folders at `wal.location`. Nothing was published; the source has the rows.

    What to do: Set `wal.location` to a place that the driver and all executors share.
    """

    exit_code = 6


class CorruptLog(WalSinkError):
    """An object of the log is not what was written. The rows of the epoch that the object names are at risk.

    A digest differs, JSON cannot be read, or a file is missing. If a newer version of wal_sink wrote the
    object, nothing is wrong.

    What to do: If the format is newer, upgrade. Otherwise restore the file from a copy. If there is none:
    `wal-sink give-up CHECKPOINT --epoch EPOCH`. `wal-sink status CHECKPOINT --deep` reads everything that
    is pending, and lists what is damaged.
    """

    exit_code = 6


class LogUnavailable(WalSinkError):
    """The store of the log, or of the checkpoint, answers with an error.

    Possible causes: no space, no permission, no credentials, or no connection. A flush tries again by itself.
    A query that cannot publish stops, and loses nothing.

    What to do: Repair the disk, the mount or the bucket, and start the query again if it has stopped.
    """

    exit_code = 6
    transient = True


class CheckpointNotVisible(WalSinkError):
    """The query's checkpoint cannot be read where the sink looks for it (rule `identity`).

    Possible causes: the path is inside a container, on a mount that this host does not have, or an empty
    folder. Nothing was changed.

    What to do: Give an absolute location that the driver and this process share.
    """

    exit_code = 6


class UnknownOffsetsFormat(WalSinkError):
    """Spark wrote an offsets file in a format that this version of wal_sink does not know.

    Known formats are `v1` and `v2`. The query stops before it publishes.

    What to do: Upgrade wal_sink, or go back to the Spark that wrote the checkpoint.
    """

    exit_code = 6


# --- exit code 7: decide which history is right --------------------------------------------------


class Diverged(WalSinkError):
    """One epoch id has two different histories (rules `publish` and `restored`).

    The checkpoint was set back to a backup, two queries ran from it, or the checkpoint is a copy. The table
    has one of the two histories. **Only you can decide which one is right.**

    What to do: Restore the newer checkpoint, or start with a new checkpoint. If checkpoint and log were
    restored from a backup without the target: restore the target, too, or run the `wal-sink set-mark` that
    the text names.
    """

    exit_code = 7


class LedgerBehindLog(WalSinkError):
    """The ledger row is older than the epochs in the log (rule `restored`). Rows of the table may be lost.

    The target was restored from a backup that is older than `wal.retention`, or the table of the ledger was
    truncated.

    What to do: Restore a newer copy of the target. Or stop the query and every other flusher, and accept what
    the target has: `wal-sink set-mark CHECKPOINT --to EPOCH`.
    """

    exit_code = 7


@contextlib.contextmanager
def of_target(name: str) -> Iterator[None]:
    """Put the name of a target before the texts of all errors in the block.

    :param name: the name of the target; empty for a single target.
    """
    try:
        yield
    except WalSinkError as error:
        if not name:
            raise
        raise type(error)(f"Target {name}: {error.what}", error.remedy) from error


def by_name(kind: str) -> type[WalSinkError]:
    """Return the class of an error by its name; `WalSinkError` if there is no such class."""
    named = globals().get(kind)
    return named if isinstance(named, type) and issubclass(named, WalSinkError) else WalSinkError


def printable(text: str) -> str:
    r"""Return text with control characters escaped: `\x1b` in place of an escape character."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


REPORT_IT = "This is a bug in wal_sink or a change in Spark; please report it."
ADOPT = "`wal-sink adopt CHECKPOINT`"


def restore_or_give_up(epoch: int | None) -> str:
    """Return the remedy for a manifest or a segment that is gone or damaged."""
    number = "EPOCH" if epoch is None else str(epoch)
    return (
        f"Restore the file from a copy of the log. If there is none, give the epoch up: `wal-sink give-up"
        f" CHECKPOINT --epoch {number}` keeps its other files, and the flush continues without it."
        " `wal-sink status CHECKPOINT --deep` lists what else is damaged."
    )


def while_refused(epoch: int) -> str:
    """Return the second part of the remedy for refused rows. The target writes the first part, the repair."""
    return (
        "The flush then continues by itself. To keep such rows in files, and continue without them, set"
        " onInvalidRow=quarantine. To continue without the epoch: `wal-sink give-up CHECKPOINT"
        f" --epoch {epoch}`."
    )


def stand_in(log: str, last: str) -> str:
    """Return the commands that make a stand-in for a deleted checkpoint, and flush its log.

    :param log: URL of the log.
    :param last: the last epoch that Spark had completed.
    """
    logs, _, query_id = log.rpartition("/")
    json, wal = f'{{"id":"{query_id}"}}', f"--wal {shlex.quote(logs)}"
    return (
        f"To flush what is there: mkdir -p stand-in/commits && echo '{json}' > stand-in/metadata &&"
        f" printf 'v1\\n{{}}' > stand-in/commits/{last} && wal-sink adopt stand-in {wal} && wal-sink flush"
        f" stand-in {wal}."
    )
