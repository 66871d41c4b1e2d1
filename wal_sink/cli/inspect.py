"""The commands that only read: `status`, `show`, `quarantine`, `check` and `options`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wal_sink.admin.deep_status import DeepStatus, deep_status
from wal_sink.admin.quarantine import QuarantineList, export, list_quarantine
from wal_sink.admin.query import Query, find_query
from wal_sink.admin.show import Attempt, AttemptDetails, EpochList, show_epochs
from wal_sink.cli.arguments import (
    AsJson,
    CheckpointPlace,
    OptionPairs,
    SinkOptionPairs,
    TargetName,
    WalUrl,
    option_values,
    refuse_combinations,
)
from wal_sink.cli.terminal import (
    SafeConsole,
    fact_table,
    output,
    print_document,
    progress_bar,
)
from wal_sink.errors import printable
from wal_sink.options import Entry, SinkOptions, reference
from wal_sink.progress.status import (
    Line,
    Status,
    epoch_id,
    read_status,
    status_lines,
)
from wal_sink.publish.preflight import preflight_options
from wal_sink.targets.registry import installed, target_type
from wal_sink.units import ago, byte_count, counted, now_us

_WATCH_S = 1.0
"""Seconds between two reads of `--watch`."""


def status(
    checkpoint: CheckpointPlace,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh the status every second, until Ctrl-C.")
    ] = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Read all pending epochs and the target, to find what stops the flush."
        ),
    ] = False,
    target: TargetName = "",
    wal: WalUrl = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Show how far the flush is, what the flusher does, and its last error.

    The command reads only checkpoint and log. So it works while the target is down, and disturbs no
    other process. With --watch and --json it prints a document in a line every second.

    With --deep it also reads every pending manifest and segment, the ledger row and the table. It
    lists the errors at which the flush would stop. The exit code is that of the first error, or 0.
    """
    with output(as_json=as_json) as console:
        refuse_combinations(
            (deep and watch, "--deep does not go with --watch.", "Leave one of them out."),
            (
                watch and not as_json and not console.is_terminal,
                "--watch needs a terminal.",
                "Add --json to print into a file or a pipe.",
            ),
        )
        query = find_query(checkpoint, wal, option_values(option))
        if deep:
            size = max(1, read_status(query.checkpoint, query.store).pending_bytes)
            with progress_bar("reading segments", as_json=as_json) as progress:
                inspected = deep_status(query, target, lambda done: progress(done, size))
            console.show(inspected, fact_table(*status_lines(inspected), *_findings(inspected)))
            if inspected.findings:
                raise typer.Exit(inspected.findings[0].exit_code)
        elif watch:
            _watch(query, target, console)
        else:
            reading = read_status(query.checkpoint, query.store, target)
            console.show(reading, fact_table(*status_lines(reading)))


def _findings(status: DeepStatus) -> Iterator[Line]:
    """Yield the lines that `--deep` adds to the status."""
    yield Line("read", f"{counted(status.read_epochs, 'epoch')}, {byte_count(status.read_bytes)}")
    for name, epoch in status.ledger.items():
        yield Line(f"ledger of {name}", "no row" if epoch is None else f"epoch {epoch}")
    for note in status.notes:
        yield Line("note", note)
    for finding in status.findings:
        where = "" if finding.epoch is None else f" at epoch {finding.epoch}"
        scope = f" of target {finding.target}" if finding.target else ""
        yield Line("finding", f"{finding.kind}{where}{scope}: {finding.what}", "bad")
        yield Line("what to do", finding.remedy)
    if not status.findings:
        yield Line("finding", "none: nothing would stop the flush", "good")


def _watch(query: Query, target: str, console: SafeConsole) -> None:
    """Show the status every second until Ctrl-C: on the terminal, or with `--json` as lines of JSON."""
    readings = _readings(query, target)
    with contextlib.suppress(KeyboardInterrupt):
        if console.as_json:
            for reading in readings:
                print_document(reading, -1)
        with Live(console=console, auto_refresh=False) as live:
            for reading in readings:
                live.update(fact_table(*status_lines(reading)), refresh=True)


def _readings(query: Query, target: str) -> Iterator[Status]:
    while True:
        yield read_status(query.checkpoint, query.store, target)
        time.sleep(_WATCH_S)


def show(
    checkpoint: CheckpointPlace,
    epoch: Annotated[
        int | None, typer.Argument(metavar="EPOCH", min=0, help="The only epoch to show.")
    ] = None,
    *,
    rows: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=1_000, help="With EPOCH: how many rows to show, 1,000 at most."
        ),
    ] = 5,
    most: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many epochs to list at most.")
    ] = 40,
    target: TargetName = "",
    wal: WalUrl = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """List the epochs in the log, or show one epoch with its segments, schema, offsets and some rows.

    The command changes nothing and connects to no target, and the query may run. It reads the rows in
    the log. Some time after the flush of an epoch, the log deletes its rows.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        shown = show_epochs(query, target, epoch, most=most, rows=rows)
        console.show(shown, log_screen(shown, now_us()))


_STYLES = {
    "flushed": "green",
    "pending": "yellow",
    "damaged": "red",
    "no manifest": "red",
}

_MOST_CHARACTERS = 80
"""Most characters of a value; longer texts are cut."""


def log_screen(shown: EpochList, now_us: int) -> RenderableType:
    """Return the screen of `show`: a table of epochs with their ages, and the details of a single epoch.

    :param now_us: the present time, microseconds since 1970.
    """
    table = _table("epoch", "state", "segments", "rows", "bytes", "published")
    for attempt in shown.epochs:
        published = attempt.published and datetime.fromisoformat(attempt.published).timestamp()
        table.add_row(
            str(attempt.epoch),
            Text(attempt.state, _STYLES.get(attempt.state, "")),
            *("" if count is None else f"{count:,}" for count in (attempt.segments, attempt.rows)),
            "" if attempt.bytes is None else byte_count(attempt.bytes),
            ago(now_us / 1_000_000 - published) if published else "",
        )
    notes = [
        f"Query {shown.query_id}, target {shown.target}.",
        f"Checkpointed: {epoch_id(shown.checkpointed)}. Flushed: {epoch_id(shown.flushed)}.",
    ]
    if shown.trimmed >= 0:
        notes.append(f"The files of epochs up to epoch {shown.trimmed} are deleted from the log.")
    if shown.left_out:
        notes.append(f"Left out: {counted(shown.left_out, 'newer epoch')}; see --most.")
    notes += [
        f"Epoch {attempt.epoch}: {printable(attempt.problem)}"
        for attempt in shown.epochs
        if attempt.problem
    ]
    parts: list[RenderableType] = [table, Text("")] if shown.epochs else []
    parts += map(Text, notes)
    for attempt in shown.epochs:
        if attempt.details is not None:
            parts += _details(attempt, attempt.details)
    return Group(*parts)


def _details(attempt: Attempt, details: AttemptDetails) -> Iterator[RenderableType]:
    yield Text("")
    yield fact_table(
        ("run", f"{attempt.run_id}"),
        ("published", f"{attempt.published}, timestamps from {details.first_us} us"),
        ("refused rows", f"{attempt.refused_rows:,}"),
        *(("source offsets", offsets) for offsets in details.offsets),
    )
    columns = _table("column", "in the stream", "in the table", "role")
    for column in details.columns:
        texts = (column.name, column.source, column.type, column.role)
        columns.add_row(*(Text(printable(text)) for text in texts))
    segments = _table("rows", "bytes", "segment")
    for segment in details.segments:
        place = segment.path if segment.is_file else "in the manifest"
        segments.add_row(f"{segment.rows:,}", byte_count(segment.bytes), place)
    yield from (Text("\nSchema"), columns, Text("\nSegments"), segments)
    yield from sample_screen(details.sample)


def sample_screen(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Yield each row as a block with a line for each column.

    :param rows: values by column, as `json_value` returns them.
    """
    if rows:
        yield Text("\nSome rows")
    for number, row in enumerate(rows, 1):
        yield Text(f"row {number}")
        yield fact_table(*((f"  {printable(name)}", _cell(value)) for name, value in row.items()))


def _cell(value: Any) -> str:
    text = printable(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def _table(*names: str) -> Table:
    """Return a table with these columns. Only the column `segment`, with paths, may break lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    for name in names:
        right = name in {"epoch", "segments", "rows", "bytes"}
        table.add_column(
            Text(name),
            justify="right" if right else "left",
            no_wrap=name != "segment",
            overflow="fold",
        )
    return table


def quarantine(
    checkpoint: CheckpointPlace,
    *,
    file: Annotated[
        str,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write the rows to this new file, whose name ends with .parquet or .jsonl.",
        ),
    ] = "",
    wal: WalUrl = None,
    option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """List the refused rows that onInvalidRow=quarantine keeps in the log, by epoch and reason.

    The command reads only the log. --export also writes the rows to a file, with epoch and reason.
    wal_sink does not write them again: repair the rows, and write them by another query.
    """
    with output(as_json=as_json) as console:
        query = find_query(checkpoint, wal, option_values(option))
        if file:
            written = export(query, file)
            rows = counted(written.rows, "row is", "rows are")
            console.show(written, f"{rows} in {written.file}.")
        else:
            quarantined = list_quarantine(query)
            console.show(quarantined, *_quarantined(quarantined))


def _quarantined(quarantined: QuarantineList) -> Iterator[RenderableType]:
    if not quarantined.rows:
        yield "No rows are in quarantine."
        return
    yield f"{counted(quarantined.rows, 'row is', 'rows are')} in quarantine."
    table = Table()
    for name in ("epoch", "rows"):
        table.add_column(name, justify="right")
    for name in ("column", "reason", "what to do"):
        table.add_column(name, overflow="fold")
    for group in quarantined.groups:
        texts = (group.column, group.reason, group.remedy)
        table.add_row(str(group.epoch), f"{group.rows:,}", *(Text(printable(t)) for t in texts))
    yield table


def check(
    checkpoint: CheckpointPlace, *, option: SinkOptionPairs = None, as_json: AsJson = False
) -> None:
    """Check the options of a query before it starts, and show their effect.

    Give each option of `writeStream` by --option. The command connects to no target and creates
    nothing. In Python, `wal_sink.check(df, **options)` also compares the columns with the table. For
    example:

    wal-sink check CHECKPOINT --option target=delta --option delta.path=/data/orders
    """
    with output(as_json=as_json) as console:
        checked = preflight_options({"checkpointLocation": checkpoint, **option_values(option)})
        console.show(checked, fact_table(*checked.in_force.items()))


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the sink itself, or of one target."""

    name: str
    """Name of the target; empty for the sink."""
    options: tuple[Entry, ...]


class OptionGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the sink and of targets. `wal-sink options --json` prints this class."""

    groups: tuple[OptionGroup, ...]


def option_groups(target: str = "") -> tuple[OptionGroup, ...]:
    """Return the options of the sink, and the options of its targets.

    :param target: the only target to list; empty for all installed targets.
    :raises OptionError: no target has this name.
    """
    names = [target] if target else installed()
    declared = {"": SinkOptions} | {name: target_type(name).options_type for name in names}
    return tuple(
        OptionGroup(name=name, options=tuple(reference(struct)))
        for name, struct in declared.items()
    )


def options(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Name of a target, or module:Class of your own target."
        ),
    ] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """List the options of a query, with type, default and meaning.

    With TARGET, the list has the options of every query and of this target. Without TARGET, it has the
    options of all installed targets.
    """
    with output(as_json=as_json) as console:
        groups = option_groups(target)
        texts: list[RenderableType] = []
        for group in groups:
            heading = f"Options of target {group.name}" if group.name else "Options of every query"
            entries = ((entry.name, _meaning(entry)) for entry in group.options)
            texts += [Text(heading, "bold underline"), fact_table(*entries), ""]
        console.show(OptionGroups(groups=groups), *texts)


def _meaning(entry: Entry) -> str:
    if entry.default == "required":
        notes = [entry.takes, "required"]
    else:
        notes = [entry.takes, f"default {entry.default}" if entry.default else "no default"]
    if entry.environment:
        notes.append(f"or the variable {entry.environment}")
    if entry.secret:
        notes.append("never shown")
    return f"{entry.text}\n({'; '.join(notes)})"
