"""Spark's classes in an archive that a JVM maps, instead of finding, parsing and checking each in a jar.

The tests start Spark some eighty times, mostly because they killed it; an archive nearly halves what a
short application costs. Java makes one as a JVM ends (`-XX:ArchiveClassesAtExit`, JEP 350): here that
of `tests/archived_app.py`, which does what the others do. A JVM whose archive is not there, or is of
other jars or another Java, loads its classes in the ordinary way; nothing depends on it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

logger = logging.getLogger(__name__)

# Sessions are short here, and many: compiling what they run would take longer than it saves. Without
# the log, a JVM says on its standard output why it does not take an archive.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
_PATIENCE_S = 240


def options() -> str:
    """Return options for Spark's JVMs; with the archive, from when it is there."""
    return f"{_OPTIONS} -XX:SharedArchiveFile={_path()}"


@functools.cache
def make() -> None:
    """Make the archive unless it is there; if another process is doing that, go on without."""
    path = _path()
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not path.exists():
            _make(path)


def _make(path: Path) -> None:
    begun = path.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [sys.executable, "-m", "tests.archived_app"],
        env={**os.environ, "SPARK_SUBMIT_OPTS": f"{_OPTIONS} -XX:ArchiveClassesAtExit={begun}"},
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    if done.returncode == 0 and begun.exists():
        begun.rename(path)  # whole from its first moment
    else:
        logger.warning("no archive of Spark's classes, so its starts are slow: %s", done.stderr)


def _path() -> Path:
    """Return where the archive is: in the user's cache, one for each Java and each PySpark."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    jars = Path(pyspark.__file__).parent / "jars"
    of = [Path(java or "").resolve(), jars, jars.stat().st_mtime_ns, _OPTIONS]
    digest = hashlib.sha256("\n".join(map(str, of)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "wal_sink" / f"spark-{pyspark.__version__}-{digest}.jsa"
