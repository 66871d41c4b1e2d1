"""The result of the cluster's soak as tables and as a picture."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table

from tests.soak.cluster import KINDS, TARGETS, VICTIMS, ClusterOutcome

_COLOURS = dict(zip(KINDS, ("#d62728", "#8c8c8c", "#1f6fb4"), strict=True))


def tables(outcome: ClusterOutcome) -> Iterator[Table]:
    """Yield the tables of targets, of faults, and of errors."""
    columns = ("expected", "found", "missing", "extra", "reads", "rows that were read")
    targets = Table("target", *columns, "reads during outages", "wrong rows")
    for name, target in outcome.targets.items():
        rows = target.counts
        counts = [rows.expected, rows.found, rows.missing, rows.extra]
        counts += [target.reads, target.rows_read, target.unanswered]
        wrong = "; ".join(target.wrong[:5]) or "none"
        targets.add_row(TARGETS[name], *(f"{count:,}" for count in counts), wrong)
    yield targets
    numbers = Counter((fault.victim, fault.kind) for fault in outcome.faults)
    faults = Table("process", *KINDS)
    for victim in VICTIMS:
        faults.add_row(victim, *(str(numbers[victim, kind] or "") for kind in KINDS))
    yield faults
    recovered = outcome.recovered_s
    text = Table("", "")
    text.add_row("rows that targets have of different attempts", f"{outcome.differ:,}")
    text.add_row("rows of aborted transactions, in no target", f"{outcome.aborted:,}")
    text.add_row("starts of the application", f"{outcome.starts:,}")
    median, most = statistics.median(recovered), max(recovered)
    text.add_row(
        "seconds until all targets went on, after a round", f"{median:.0f}, at most {most:.0f}"
    )
    for how, number in outcome.endings.most_common():
        text.add_row("ended by itself", f"{number} times: {how}")
    for error, number in outcome.errors.most_common(10):
        text.add_row("last error in status", f"{number} times: {error}")
    yield text


def draw(path: Path, outcome: ClusterOutcome) -> None:
    """Draw the produced and the visible rows over time, with the faults."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    rows, faults = figure.subplots(2, 1, sharex=True)
    at_s = [sample.at_s for sample in outcome.samples]
    rows.plot(at_s, [sample.produced for sample in outcome.samples], label="committed in the topic")
    for name, title in TARGETS.items():
        visible = [sample.visible.get(name, 0) for sample in outcome.samples]
        rows.plot(at_s, visible, label=f"visible in {title}")
    rows.set_title("a query with three targets while everything under it dies", fontsize=10)
    rows.set_ylabel("rows", fontsize=9)
    rows.yaxis.set_major_formatter("{x:,.6g}")
    rows.legend(frameon=False, fontsize=9)
    # Long faults are drawn first, below the short ones.
    for kind, colour in reversed(_COLOURS.items()):
        of_kind = [fault for fault in outcome.faults if fault.kind == kind]
        faults.barh(
            [VICTIMS.index(fault.victim) for fault in of_kind],
            [max(1.0, fault.ended_s - fault.began_s) for fault in of_kind],
            left=[fault.began_s for fault in of_kind],
            color=colour,
            label=f"{kind}, until it is over",
        )
    faults.set_xlabel("seconds", fontsize=9)
    faults.set_yticks(range(len(VICTIMS)), VICTIMS, fontsize=9)
    faults.invert_yaxis()
    faults.legend(frameon=False, fontsize=9, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    for axes in (rows, faults):
        axes.spines[["top", "right"]].set_visible(False)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wal_sink"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
