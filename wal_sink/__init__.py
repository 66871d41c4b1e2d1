"""A write-ahead-log sink for Spark Structured Streaming: exactly-once into Cassandra and other stores.

>>> with wal_sink.register(spark):
...     query = df.writeStream.format("wal_sink").option(...).start()

README.md beside this file describes the packages. Spark is imported on first use, so a task that imports this
package, or reads its errors, does not load Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wal_sink.errors import WalSinkError

if TYPE_CHECKING:
    from wal_sink.progress.status import Status
    from wal_sink.progress.wait import Flushed
    from wal_sink.publish.preflight import Checked
    from wal_sink.spark.api import Sink, await_flushed, check, register, status
    from wal_sink.spark.batch_writer import batch_writer

__version__ = "0.1.0rc1"
__all__ = [
    "Checked",
    "Flushed",
    "Sink",
    "Status",
    "WalSinkError",
    "await_flushed",
    "batch_writer",
    "check",
    "register",
    "status",
]

_LAZY = {
    "Checked": "wal_sink.publish.preflight",
    "Flushed": "wal_sink.progress.wait",
    "Sink": "wal_sink.spark.api",
    "Status": "wal_sink.progress.status",
    "await_flushed": "wal_sink.spark.api",
    "batch_writer": "wal_sink.spark.batch_writer",
    "check": "wal_sink.spark.api",
    "register": "wal_sink.spark.api",
    "status": "wal_sink.spark.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
