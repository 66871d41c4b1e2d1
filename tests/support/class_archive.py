"""Classes in an archive that a JVM maps, instead of finding, parsing and checking each in a jar.

The tests start Spark some eighty times, and Cassandra about as often, mostly because they killed it. An
archive nearly halves what a short application costs, and makes a node's start cheaper. Java makes one as
a JVM ends (`-XX:ArchiveClassesAtExit`, JEP 350): here that of an application which does what the others do.
A JVM whose archive is not there, or is of other jars or another Java, loads its classes in the ordinary way;
nothing depends on it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pyspark

from wal_sink.demo.servers import cassandra
from wal_sink.demo.servers.maven import cache_folder

logger = logging.getLogger(__name__)

# Without the log, a JVM says on its standard output why it does not take an archive.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_PATIENCE_S = 600


class ClassArchive(NamedTuple):
    """What the JVMs of one kind map; the file is in the user's cache, one for each Java."""

    name: str
    jars: Path
    """The folder that the classes come from; it need not be there yet."""
    variable: str
    """The environment variable from which such a JVM takes further options."""
    always: str
    """Options with the archive and without."""
    app: str
    """The module that runs one."""

    @property
    def options(self) -> str:
        """Options for such a JVM; with the archive, from when it is there."""
        return f"{self.always} -XX:SharedArchiveFile={self.path}"

    @property
    def executor_options(self) -> str:
        """The same for an executor of Spark, which takes no settings of Spark here."""
        return " ".join(item for item in self.options.split() if not item.startswith("-Dspark."))

    @property
    def path(self) -> Path:
        """Where the archive is."""
        source = [Path(_java() or "").resolve(), self.jars, self.always]
        digest = hashlib.sha256("\n".join(map(str, source)).encode()).hexdigest()[:12]
        return cache_folder() / f"{self.name}-{digest}.jsa"

    def make(self) -> None:
        """Begin to make the archive unless it is there; no test waits for it."""
        _make_once(self)

    def is_there(self) -> bool:
        """Return True if it is made, of the jars that are there now."""
        made = self.path
        if not (made.exists() and self.jars.exists()):
            return False
        return made.stat().st_mtime > self.jars.stat().st_mtime


SPARK = ClassArchive(
    f"spark-{pyspark.__version__}",
    Path(pyspark.__file__).parent / "jars",
    "SPARK_SUBMIT_OPTS",
    # Sessions are short here, and many: compiling what they run would take longer than it saves. Nor does
    # Spark write Java for each query, which costs a sixth of a short application's CPU.
    f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_QUIET}"
    " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    "tests.support.archived_app",
)
CASSANDRA = ClassArchive(
    f"cassandra-{cassandra.VERSION}",
    cache_folder() / f"cassandra-{cassandra.VERSION}",
    "JVM_EXTRA_OPTS",
    # A node has an agent, which measures objects; Java wants to be told that it changes no class.
    f"-XX:+UnlockDiagnosticVMOptions -XX:+AllowArchivingWithJavaAgent {_QUIET}",
    "tests.support.archived_node",
)


@functools.cache
def _make_once(archive: ClassArchive) -> None:
    if not archive.is_there():
        archive.path.parent.mkdir(parents=True, exist_ok=True)
        name = f"archive-{archive.name}"
        threading.Thread(target=_make_alone, args=(archive,), name=name, daemon=True).start()


def _make_alone(archive: ClassArchive) -> None:
    """Make it, unless another process is doing that."""
    with archive.path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not archive.is_there():
            _make(archive)


def _make(archive: ClassArchive) -> None:
    begun = archive.path.with_suffix(f".{os.getpid()}")
    app = subprocess.Popen(
        [sys.executable, "-m", archive.app],
        env={**os.environ, archive.variable: f"{archive.always} -XX:ArchiveClassesAtExit={begun}"},
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = functools.partial(_end, app)
    atexit.register(end)  # the tests may be done before
    try:
        app.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        end()
    atexit.unregister(end)
    if app.returncode == 0 and begun.exists():
        begun.replace(archive.path)  # whole from its first moment
    else:
        begun.unlink(missing_ok=True)
        logger.warning("no archive %s, so starts are slow", archive.name)


def _end(app: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(app.pid, signal.SIGKILL)
    app.wait()


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None)
