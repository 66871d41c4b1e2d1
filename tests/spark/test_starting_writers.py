"""The search of all threads for the writer that starts a query."""

from __future__ import annotations

import subprocess
import sys

BUSY = """
import gc, threading, time
from wal_sink.spark.internals.streaming_query import _starting

class Garbage:
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0)  # another thread runs

def starts_threads():
    while True:
        thread = threading.Thread(target=time.sleep, args=(0,))
        thread.start()
        thread.join()

for _ in range(3):
    threading.Thread(target=starts_threads, daemon=True).start()
gc.set_threshold(5)
for _ in range(3_000):
    Garbage()
    list(_starting())
"""


def test_reading_frames_of_busy_threads_does_not_deadlock() -> None:
    """If the garbage collector ran during the read, CPython 3.11 would deadlock within a second."""
    subprocess.run([sys.executable, "-c", BUSY], check=True, timeout=60)
