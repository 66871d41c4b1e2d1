"""Archives of Java classes, which make the start of a JVM faster.

The tests start Spark some eighty times, and Cassandra about as often. A JVM maps the classes of its archive
instead of reading them from jars, which saves nearly half of the CPU of a short application. Java writes an
archive at the end of a JVM (`-XX:ArchiveClassesAtExit`, JEP 350); `archived_app` and `archived_node` run such
JVMs. If an archive is missing, or is of other jars or another Java, the JVM reads its classes from the jars.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pyspark

from wal_sink.demo import cassandra
from wal_sink.demo.maven import cache_folder

# By default a JVM prints to its standard output why it does not use an archive.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


class ClassArchive(NamedTuple):
    """The archive of one kind of JVM, a file in the user's cache."""

    name: str
    jars: Path
    """The folder of the jars; it need not exist yet."""
    variable: str
    """The environment variable with options for the JVM."""
    always: str
    """Options for the JVM, with and without the archive."""
    app: str
    """The Python module that runs a JVM to make the archive."""

    @property
    def options(self) -> str:
        """The options for a JVM; it uses the archive as soon as the file exists."""
        return f"{self.always} -XX:SharedArchiveFile={self.path}"

    @property
    def executor_options(self) -> str:
        """The options for an executor of Spark, which refuses settings of Spark."""
        return " ".join(
            option for option in self.options.split() if not option.startswith("-Dspark.")
        )

    @property
    def path(self) -> Path:
        """The file of the archive."""
        source = [Path(_java() or "").resolve(), self.jars, self.always]
        digest = hashlib.sha256("\n".join(map(str, source)).encode()).hexdigest()[:12]
        return cache_folder() / f"{self.name}-{digest}.jsa"

    def make(self) -> None:
        """Start to make the archive in the background, unless it exists."""
        _make_once(self)

    def is_there(self) -> bool:
        """Return True if the archive exists and is newer than the jars."""
        archive = self.path
        if not (archive.exists() and self.jars.exists()):
            return False
        return archive.stat().st_mtime > self.jars.stat().st_mtime


SPARK = ClassArchive(
    f"spark-{pyspark.__version__}",
    Path(pyspark.__file__).parent / "jars",
    "SPARK_SUBMIT_OPTS",
    # The sessions are short, so the optimizing compiler and Spark's code generation cost more than they save.
    f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_QUIET}"
    " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    "tests.support.archived_app",
)
CASSANDRA = ClassArchive(
    f"cassandra-{cassandra.VERSION}",
    cache_folder() / f"cassandra-{cassandra.VERSION}",
    "JVM_EXTRA_OPTS",
    # A node has a Java agent that measures objects; an archive with an agent needs these options.
    f"-XX:+UnlockDiagnosticVMOptions -XX:+AllowArchivingWithJavaAgent {_QUIET}",
    "tests.support.archived_node",
)


@functools.cache
def _make_once(archive: ClassArchive) -> None:
    """Start a process that makes the archive. It does nothing if another process is making it."""
    if archive.is_there():
        return
    archive.path.parent.mkdir(parents=True, exist_ok=True)
    begun = archive.path.with_suffix(f".{os.getpid()}")
    # The file is complete when it gets its name.
    script = '"$0" -m "$1" && mv "$2" "$3" || rm -f "$2"'
    app = subprocess.Popen(
        [
            *("flock", "--nonblock", archive.path.with_suffix(".lock"), "sh", "-c", script),
            *(sys.executable, archive.app, begun, archive.path),
        ],
        env={**os.environ, archive.variable: f"{archive.always} -XX:ArchiveClassesAtExit={begun}"},
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_end, app)


def _end(app: subprocess.Popen[bytes]) -> None:
    """Kill the process, since the tests may end before it does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(app.pid, signal.SIGKILL)
    app.wait()


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None)
