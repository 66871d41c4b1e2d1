"""The part `short`: a job of three epochs of 1,000 rows in a new session."""

from __future__ import annotations

import compileall

import msgspec

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.process import ROOT, result_of
from tests.benchmarks.rows import Source
from tests.benchmarks.short_job_app import APIS, Config, Taken
from tests.benchmarks.sizes import SMALL
from tests.benchmarks.table import Table

_EPOCHS = 3
_COUNTS = "counts only"
_PAIRS = (
    ("wal_sink", _COUNTS, 1.1),
    ("wal_sink", "foreachBatch", 1.0),
    ("wal_sink, batch_writer", "foreachBatch", 1.0),
)
"""A contender, the contender that it is compared with, and the target of the ratio."""
_COMPILED = ("wal_sink", "state_backends", "tests/benchmarks")
"""Packages to compile before the first round, as pip does for installed packages."""


def short(bench: Bench) -> list[Figure]:
    """Compare CPU and time of a short job, in an application for each contender and round."""
    source = Source(shape="grouped", rows=_EPOCHS * SMALL, partitions=10)
    bench.say(f"short, {bench.sizes.rounds} rounds of {_EPOCHS} epochs of {SMALL:,} rows")
    # PYTHONDONTWRITEBYTECODE may be set, and each process would compile again.
    for package in _COMPILED:
        compileall.compile_dir(ROOT / package, quiet=1)
    rounds: list[dict[str, Taken]] = []
    for number in range(bench.sizes.rounds):
        turn = [*APIS] if number % 2 == 0 else [*reversed(APIS)]
        rounds.append({name: _taken(bench, source, name) for name in turn})
    figures = []
    for name, other, most in _PAIRS:
        pairs = [(item[name], item[other]) for item in rounds]
        cpu = [one.cpu_s / another.cpu_s for one, another in pairs]
        time = [one.seconds / another.seconds for one, another in pairs]
        note = "; ".join(map(str, pairs[-1]))
        figures += [
            figure(f"short: {name} over {other}, client CPU", cpu, "x", at_most(most), note),
            figure(f"short: {name} over {other}, time", time, "x", at_most(most)),
        ]
    return figures


def _taken(bench: Bench, source: Source, api: str) -> Taken:
    """Run an application of one contender, and check the table."""
    table = Table(bench.server)
    config = Config(
        api=api,
        files=str(source.files(_EPOCHS)),
        schema=source.schema,
        checkpoint=str(bench.new_folder()),
        options=ours.options(table),
        insert=table.insert,
    )
    text = result_of("tests.benchmarks.short_job_app", msgspec.json.encode(config).decode())
    taken = msgspec.json.decode(text, type=Taken)
    bench.say(f"  {api}: {taken.seconds:.1f} s; CPU {taken}")
    if api != _COUNTS:
        bench.complete(api, lambda: table.check(source))
    table.drop()
    return taken
