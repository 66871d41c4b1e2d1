"""An application with one large epoch: `python -m tests.benchmarks.memory_app CONFIG` prints its memory."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec

import wal_sink
from tests.benchmarks.contenders.ours import DRAIN_S
from tests.benchmarks.rows import Source
from tests.benchmarks.session import open_session


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the large epoch, and a small source that loads all code before it."""

    folder: str
    source: Source
    options: dict[str, str]
    warm_up: Source
    warm_up_options: dict[str, str]


class Memory(msgspec.Struct, frozen=True):
    """The resident memory of the driver's Python process, in MB."""

    start: float
    peak: float


def main(config: Config) -> Memory:
    """Stream both sources; return the memory between them and the peak after it."""
    spark = open_session()

    def run(source: Source, options: dict[str, str], checkpoint: Path) -> None:
        rows = spark.readStream.schema(source.schema).parquet(str(source.files(1)))
        writer = rows.writeStream.format("wal_sink").options(**options)
        with wal_sink.register(spark, drain_timeout=DRAIN_S):
            query = writer.option("checkpointLocation", str(checkpoint)).start()
            query.processAllAvailable()
            query.stop()

    run(config.warm_up, config.warm_up_options, Path(config.folder, "warm-up"))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, see proc(5)
    start = _mb("VmRSS")
    run(config.source, config.options, Path(config.folder, "checkpoint"))
    spark.stop()
    return Memory(start, _mb("VmHWM"))


def _mb(name: str) -> float:
    match = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) / 1_024


if __name__ == "__main__":
    sys.stdout.write(
        msgspec.json.encode(main(msgspec.json.decode(sys.argv[1], type=Config))).decode()
    )
