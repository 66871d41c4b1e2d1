"""What a Spark worker holds for good is looked through once, not after each task.

pyspark's daemon calls `gc.collect()` in a worker whenever it has done something. With pyspark, pyarrow and
this package loaded that takes some 30 ms of CPU, and a micro-batch has it done in two workers of
the driver's host and one for each task.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle() -> None:
    """Take what is alive now, modules above all, out of every later collection (`gc.freeze`); once.

    Called in Spark's workers only, at the end of the first work: everything is imported by then. It is freed
    as ever when nobody refers to it; but if it is in a cycle then, it stays: at most what there was at
    that moment, once for each process. What comes later is collected as ever.
    """
    gc.collect()
    gc.freeze()
