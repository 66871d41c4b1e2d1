"""Interrupts calls of the JVM; `python -m tests.spark.interrupted` prints how many interrupts were raised.

It is a process of its own: after an interrupt, py4j may give a call the answer to an earlier call.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from wal_sink.demo.local_spark import local_session
from wal_sink.spark.internals import spark_session, streaming_query

_TIMES = 20


def main() -> None:
    """Interrupt calls at different moments, as long as the session gives right answers."""
    spark = local_session()
    sent = came = 0
    for attempt in range(_TIMES):
        sent += 1
        try:
            end = time.monotonic() + 5
            threading.Timer(0.005 + attempt * 0.0003, os.kill, [os.getpid(), signal.SIGINT]).start()
            while time.monotonic() < end:
                streaming_query.running_queries(spark)
        except KeyboardInterrupt:
            came += 1
        except Exception as error:  # noqa: BLE001 -- the answers are mixed up
            sys.stderr.write(f"{error!r}\n")
            sent -= 1
            break
        spark_session.drop_interrupted_call(spark)
    sys.stdout.write(f"{came} of {sent}")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
