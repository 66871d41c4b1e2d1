"""A short job in a fresh session: three epochs of 1,000 rows, then the application ends."""

from __future__ import annotations

import compileall
from pathlib import Path

import msgspec
import pyspark

from tests.benchmarks.bench import Bench
from tests.benchmarks.cold_app import APIS, Config, Taken
from tests.benchmarks.contenders import ours
from tests.benchmarks.figure import Figure, at_most, figure
from tests.benchmarks.process import ROOT, result_of
from tests.benchmarks.rows import Source
from tests.benchmarks.sizes import SMALL
from tests.benchmarks.table import Table

_EPOCHS = 3
_WRITE_NOTHING = ("noop", "counts only")
_BARE = ", no archive"
"""Added to the name of an API: Spark's Python workers import pyspark from its folder."""
FORMAT = "wal_sink"
_OURS = (FORMAT, "wal_sink, batch_writer")
_CONTENDERS = (*APIS, *(f"{api}{_BARE}" for api in _OURS))
_PAIRS = (
    ("counts only", "noop", None),
    (FORMAT, "counts only", 1.1),
    *((api, "foreachBatch", 1.0) for api in _OURS),
    *((f"{api}{_BARE}", "foreachBatch", 1.0) for api in _OURS),
)
"""A contender over another one, and the target."""
_COMPILED = ("wal_sink", "state_backends", "tests/benchmarks")
"""What pip compiles where it installs it, as it has done with all that others import."""


def cold(bench: Bench) -> list[Figure]:
    """CPU and time of `register` and query, in a driver of its own for each contender and round."""
    source = Source(shape="grouped", rows=_EPOCHS * SMALL, partitions=10)
    bench.say(f"cold, {bench.sizes.rounds} rounds of {_EPOCHS} epochs of {SMALL:,} rows")
    for package in _COMPILED:  # else each process would, where PYTHONDONTWRITEBYTECODE is set
        compileall.compile_dir(ROOT / package, quiet=1)
    bare = _without_archive(bench.new_folder())
    rounds: list[dict[str, Taken]] = []
    for number in range(bench.sizes.rounds):
        turn = _CONTENDERS if number % 2 == 0 else _CONTENDERS[::-1]
        rounds.append({name: _taken(bench, source, name, bare) for name in turn})
    figures = []
    for name, other, most in _PAIRS:
        pairs = [(each[name], each[other]) for each in rounds]
        target = None if most is None else at_most(most)
        cpu = [one.cpu_s / another.cpu_s for one, another in pairs]
        time = [one.seconds / another.seconds for one, another in pairs]
        notes = [*map(str, pairs[-1]), *([_sum(rounds[-1])] if name == FORMAT else [])]
        note = "; ".join(notes)
        figures += [
            figure(f"cold: {name} over {other}, client CPU", cpu, "x", target, note),
            figure(f"cold: {name} over {other}, time", time, "x", target),
        ]
    return figures


def _sum(taken: dict[str, Taken]) -> str:
    """Say whose the CPU of our format is: Spark's, that of any Python sink's workers, and what is left."""
    noop, counting, whole = (taken[name].cpu_s for name in (*_WRITE_NOTHING, FORMAT))
    return (
        f"Spark {noop:.1f} + Python workers of a sink {counting - noop:.1f} + ours"
        f" {whole - counting:.1f} = {whole:.1f} s"
    )


def _taken(bench: Bench, source: Source, name: str, bare: Path) -> Taken:
    """Let a driver of its own do the job, and check the table."""
    table = Table(bench.server, source.columns)
    api = name.removesuffix(_BARE)
    config = Config(
        api=api,
        files=str(source.files(_EPOCHS)),
        schema=source.schema,
        checkpoint=str(bench.new_folder()),
        options=ours.options(table),
        insert=table.insert,
        spark_home="" if api == name else str(bare),
    )
    text = result_of("tests.benchmarks.cold_app", msgspec.json.encode(config).decode())
    taken = msgspec.json.decode(text, type=Taken)
    bench.say(f"  {name}: {taken.seconds:.1f} s; CPU {taken}")
    if api not in _WRITE_NOTHING:
        bench.complete(name, lambda: table.check(source))
    table.drop()
    return taken


def _without_archive(folder: Path) -> Path:
    """Make a Spark whose workers do not find `python/lib/pyspark.zip`, and so import what is installed."""
    folder.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "python":
            (folder / each.name).symlink_to(each)
    return folder
