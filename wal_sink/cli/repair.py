"""The commands that change a query's state: each plans, says the consequences, asks, and carries out.

They are `skip`, `rewind`, `adopt`, `attach` and `detach`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Protocol, TypeVar

import msgspec
import typer
from rich.console import Console

from state_backends import StateBackend, StateBackendError, child_url
from wal_sink.admin.adopt import plan_adopt
from wal_sink.admin.attach import Attached, missing_epochs_text, plan_attach, plan_detach
from wal_sink.admin.flusher_at_work import Patience
from wal_sink.admin.query import Query, target_of
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.skip import Skipped, plan_skip
from wal_sink.cli.arguments import Given, command, whole_number
from wal_sink.cli.terminal import SafeConsole, output
from wal_sink.clock import now_us
from wal_sink.errors import OptionError
from wal_sink.progress.status import epoch_id
from wal_sink.targets.base import Target
from wal_sink.text import counted

Done_co = TypeVar("Done_co", bound=msgspec.Struct, covariant=True)


class Change(Protocol[Done_co]):
    """A change that could be made when it was planned; nothing is changed yet."""

    @property
    def consequences(self) -> str:
        """What the operator agrees to, as sentences."""

    def carry_out(self, now_us: int, why: str = "") -> Done_co:
        """Make the change, and return the command's JSON document.

        :param now_us: microseconds since 1970.
        """


def make_change(
    given: Given,
    plan: Callable[[Query, Target], Change[Done_co]],
    summary: Callable[[Done_co], str],
) -> None:
    """Plan a change, ask the operator, and carry it out.

    :param plan: checks that the change can be made, and returns it; raises the error that forbids it.
    :param summary: returns the text for people about the outcome.
    :raises typer.Exit: the change was refused, or the answer was no.
    """
    with output(as_json=given.as_json) as console:
        query = _patient(given.find()).of(given.target)
        change = plan(query, target_of(query, given.options))
        _confirm(change.consequences, yes=given.yes)
        done = change.carry_out(now_us(), given.why)
        console.show(done, summary(done))


def _patient(query: Query) -> Query:
    """Let a command say on standard error why it waits."""
    return query._replace(patience=Patience(say=_say))


def _errors() -> Console:
    return SafeConsole(stderr=True, soft_wrap=True)


def _say(text: str) -> None:
    """Tell the operator something on standard error."""
    _errors().print(text)


def _confirm(consequences: str, *, yes: bool) -> None:
    """Say what is about to happen, and ask, on standard error.

    :param yes: the answer is given already.
    :raises OptionError: the answer is no, or there is none. Nothing was changed.
    """
    _say(consequences)
    if yes:
        return
    console = _errors()
    console.print("Go on? [y/N] ", end="")
    try:
        answer = sys.stdin.readline() if sys.stdin is not None else ""
    except (OSError, ValueError):  # closed
        answer = ""
    if not answer.endswith("\n"):
        console.print()  # the error is on a line of its own
    if answer.strip().lower() not in {"y", "yes"}:
        raise OptionError(
            "The answer was not yes. Nothing was changed.", "Answer y, or pass --yes."
        )


@command()
def skip(
    given: Given,
    epoch: Annotated[
        int,
        typer.Argument(metavar="EPOCH", parser=whole_number(0), help="Number of the micro-batch."),
    ],
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Folder that gets its files.")
    ] = None,
    begun: Annotated[
        bool,
        typer.Option(
            "--begun", help="Give the epoch up although some of its rows may be in the table."
        ),
    ] = False,
) -> None:
    """Give up the epoch at which the flush has stopped, and go on with the next one.

    With --to, the epoch's files move to URL/QUERY_ID/, under their paths in the log. Without --to,
    only an epoch whose manifest is lost can be skipped. The log records the decision. The epoch's
    rows are not in the table; if it was begun in Cassandra, some may be.
    """
    make_change(
        given,
        lambda query, database: plan_skip(
            query, database, epoch, _place(to, query), now_us(), begun=begun
        ),
        _skip_summary,
    )


def _skip_summary(done: Skipped) -> str:
    decision = done.decision
    text = f"Epoch {decision.epoch} is given up. Recorded in {done.record}."
    if decision.where:
        text += f" {counted(len(decision.files), 'file is', 'files are')} in {decision.where}."
    if done.rows_possibly_in_target:
        text += "\nIt was begun: rows of it are possibly in the table."
    return text


def _place(url: str | None, query: Query) -> StateBackend | None:
    """Open the place for the files, a folder for each query.

    :raises OptionError: it cannot be one.
    """
    if url is None:
        return None
    try:
        backend = query.open(child_url(query.open(url).url, query.query_id))
    except StateBackendError as error:
        raise OptionError(f"--to {url} cannot be used: {error}.", "Name another place.") from error
    if backend.process_local:
        raise OptionError(f"--to {url} ends with this process.", "Name a folder.")
    return backend


@command()
def rewind(
    given: Given,
    *,
    to: Annotated[
        int,
        typer.Option(
            "--to",
            metavar="EPOCH",
            parser=whole_number(-1),
            help="The last epoch that counts as flushed; -1 for none.",
        ),
    ],
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="Checkpoint and log were restored from a backup. Needed where the ledger says that an epoch"
            " is begun: the lost log had it.",
        ),
    ] = False,
    reset_timestamps: Annotated[
        bool,
        typer.Option(
            "--reset-timestamps",
            help="A clock was wrong, and rows have timestamps of the future: go back to the present.",
        ),
    ] = False,
) -> None:
    """Set ledger and log back to an epoch, so that the later epochs are flushed again.

    Use it when the target was restored from a backup, or has lost rows. The log must still hold the
    epochs, or get them back from a copy.

    With --to the last flushed epoch, no epoch is flushed again. Do so when the ledger row is lost
    or lies behind, and the table has all rows. If the log was restored from a backup, the epochs
    that the ledger does not have are flushed.

    After a clock was ahead, --reset-timestamps brings the write timestamps back to the present.
    """
    make_change(
        given,
        lambda query, database: plan_rewind(
            query,
            database,
            to,
            now_us(),
            restored=restored,
            reset_by=now_us if reset_timestamps else None,
        ),
        lambda done: (
            f"Epoch {to} is the last one that counts as flushed;"
            f" {counted(done.again, 'epoch is', 'epochs are')} flushed again."
            + (f" Until then {done.aside} has second names of their objects." if done.aside else "")
            + f" Recorded in {done.record}."
        ),
    )


@command()
def adopt(
    given: Given,
    *,
    original_is_gone: Annotated[
        bool,
        typer.Option(
            "--original-is-gone",
            help="Adopt although the old place cannot be read: you say that it is gone.",
        ),
    ] = False,
) -> None:
    """Take over log and ledger row, after the checkpoint or its log was moved.

    If the log was moved, give by --wal its new wal.location, the folder above that of the query's
    id. The command refuses while the original is still in its old place, or where that cannot be
    read: a copy must not flush into the same table.
    """
    make_change(
        given,
        lambda query, database: plan_adopt(
            query, database, now_us(), original_is_gone=original_is_gone
        ),
        lambda done: f"Adopted. Recorded in {done.record}.",
    )


@command()
def detach(
    given: Given,
) -> None:
    """Stop the flush into one of several targets, and keep no epochs for it.

    The query goes on. It may still name the target in its options. `verify` lists the epochs that
    the target lacks.
    """
    make_change(
        given,
        lambda query, _target: plan_detach(query),
        lambda done: (
            f"Target {done.target} is detached; the last epoch that it has: {epoch_id(done.state.epoch)}."
        ),
    )


@command()
def attach(
    given: Given,
    *,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="Checkpoint and log were restored from a backup. The target's ledger row is made anew. Rows"
            " of the lost log's later epochs stay in the table.",
        ),
    ] = False,
) -> None:
    """Let a detached target get epochs again.

    It gets the epochs that the log still has without a gap, and all later ones. Earlier epochs stay
    missing in the target; the command lists them, and so does `verify`. The newest run of the query
    has to name the target.
    """
    make_change(
        given,
        lambda query, database: plan_attach(query, database, restored=restored),
        _attach_summary,
    )


def _attach_summary(done: Attached) -> str:
    text = f"Target {done.target} gets epochs from {done.state.epoch} on."
    if done.missing:
        text += f" It lacks these epochs: {missing_epochs_text(*done.missing, done.missing_rows)}."
    return text
