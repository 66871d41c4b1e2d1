"""Spares Spark's Python workers a search for garbage among all modules after each task.

pyspark's daemon calls `gc.collect()` in a worker whenever the worker has done something. With pyspark,
pyarrow and this package loaded that takes some 30 ms of CPU, and each micro-batch has it done in two
workers on the driver's host and in one for each task.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle() -> None:
    """Take every object that is alive now out of all later collections (`gc.freeze`); the first call counts.

    Spark's workers call it at the end of their first work, when everything is imported. A frozen object is
    freed as ever when its last reference goes. One in a cycle stays for good: at most what was alive at
    that moment, once for each process. Objects made later are collected as ever.
    """
    gc.collect()
    gc.freeze()
