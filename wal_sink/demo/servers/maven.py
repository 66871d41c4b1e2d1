"""Downloads a Maven artifact with its dependencies, once; and finds the Java that runs a server of tests.

The Ivy that PySpark ships does the download, so Maven need not be installed. Where Ivy cannot do it (a
mirror that only Maven's settings know), Maven is the second try.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from wal_sink.errors import WalSinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Asks the kernel to kill this process when its parent dies, then becomes the command. (The same in
# a `preexec_fn` would run between fork and exec, where a parent with threads can deadlock.)
_TIE = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, ctypes.c_ulong(9))  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):  # otherwise the parent died before the kernel was asked
    os.execv(sys.argv[2], sys.argv[2:])
"""


_JAVA = "17"
"""Its major version."""


class JavaNotFound(WalSinkError):
    """There is no Java of the version that is needed."""

    exit_code = 2


def java_command(opened: Sequence[str] = ()) -> list[str]:
    """Return the command that runs Java 17, from JAVA_HOME or else from PATH.

    The process that it starts dies with the *thread* that starts it, however that one ends.

    :param opened: packages of Java's own modules that the program looks into, as `java.base/java.nio`.
    :raises JavaNotFound: neither has it.
    """
    home = os.environ.get("JAVA_HOME")
    versions: list[str] = []
    for name, path in (("JAVA_HOME", f"{home}/bin" if home else ""), ("PATH", None)):
        java = shutil.which("java", path=path)
        if java is None:
            versions.append(f"{name} has none")
            continue
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, check=False
        )
        match = re.search(r'version "(\d+)', answer.stderr)  # "17.0.15", also "17"
        if match and match[1] == _JAVA:
            tie = [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid())]
            opens = [f"--add-opens={package}=ALL-UNNAMED" for package in opened]
            return [*tie, java, *opens]
        versions.append(f"{name} has {java}, of version {match[1] if match else 'unknown'}")
    raise JavaNotFound(
        f"Java {_JAVA} is needed: {', '.join(versions)}.",
        f"Install a Java {_JAVA} runtime (Debian and Ubuntu: `apt install openjdk-{_JAVA}-jre-"
        f"headless`) and set JAVA_HOME to its folder.",
    )


def cache_folder() -> Path:
    """Return the folder in the user's cache for what is made or downloaded once; it need not be there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "wal_sink"


logger = logging.getLogger(__name__)

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>wal_sink</groupId><artifactId>jars</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""


class JarsNotResolved(WalSinkError):
    """A Maven artifact, or something it needs, could not be downloaded."""

    exit_code = 4


class Artifact(NamedTuple):
    """What Maven calls a coordinate."""

    group: str
    name: str
    version: str

    def __str__(self) -> str:
        return ":".join(self)


def jars(artifact: Artifact, name: str) -> Path:
    """Return a folder with the jars of an artifact and of everything that it needs at run time.

    It is `wal_sink/<name>` in the user's cache folder. It appears by one rename, so that one that
    exists is complete. Of several processes that do this at the same time each downloads, one wins.

    :raises JavaNotFound: see `java_command`.
    :raises JarsNotResolved: neither Ivy nor Maven could download everything.
    """
    folder = cache_folder() / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
            downloaded = _download(artifact, Path(work))
            try:
                downloaded.rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another process was faster: the same jars
                    raise
    return folder


def _download(artifact: Artifact, work: Path) -> Path:
    """Try one tool after the other; return the folder that the first successful one filled."""
    tried: list[str] = []
    for tool, prepare in (("Ivy", _ivy), ("Maven", _maven)):
        target = work / tool / "jars"
        target.parent.mkdir()
        command = prepare(artifact, target)
        if command is None:
            tried.append(f"{tool}: not installed")
            continue
        status, last_lines = _run(command, f"Downloading {artifact} with {tool}, once")
        if status == 0 and (target / f"{artifact.name}-{artifact.version}.jar").is_file():
            return target
        logger.warning("%s could not download %s (exit status %d)", tool, artifact, status)
        tried.append(f"{tool}: exit status {status}\n{last_lines}")
    raise JarsNotResolved(
        f"{artifact} could not be downloaded.\n" + "\n".join(tried),
        "Check the version and the network. If there is a proxy, name it in the environment variable "
        "JAVA_TOOL_OPTIONS (-Dhttps.proxyHost=… -Dhttps.proxyPort=…). With a mirror of your own, "
        "install Maven (`mvn`) and configure the mirror in its settings.xml.",
    )


def _ivy(artifact: Artifact, target: Path) -> list[str] | None:
    pyspark = importlib.util.find_spec("pyspark")  # looked for, not imported
    places = (pyspark.submodule_search_locations if pyspark else None) or []
    ivy = next((jar for place in places for jar in Path(place).glob("jars/ivy-*.jar")), None)
    if ivy is None:
        return None
    return [
        *(*java_command(), "-jar", str(ivy)),
        *("-cache", str(target.with_name("cache"))),  # its usual one is not safe for two processes
        *("-confs", "default"),
        *("-dependency", *artifact),
        *("-types", "jar", "bundle"),  # a bundle is a jar; unless told Ivy takes no jar at all
        *("-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"),
    ]


def _maven(artifact: Artifact, target: Path) -> list[str] | None:
    mvn = shutil.which("mvn")
    if mvn is None:
        return None
    pom = target.with_name("pom.xml")
    pom.write_text(_POM.format(**artifact._asdict()))
    return [
        *(mvn, "--batch-mode", "--file", str(pom), "dependency:copy-dependencies"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={target}"),
    ]


def _run(command: list[str], what: str) -> tuple[int, str]:
    """Run a command to its end, showing that it moves; return its exit status and last lines."""
    last_lines: deque[str] = deque(maxlen=30)
    with _progress(what) as show, _output(command) as process:
        assert process.stdout is not None
        files = 0
        try:
            for line in process.stdout:
                if not line.isspace():
                    last_lines.append(line.rstrip())
                # A description or a jar, in Ivy's words and in Maven's.
                if line.startswith(("\tfound ", "\t[SUCCESSFUL ]", "[INFO] Downloaded ")):
                    files += 1
                    if files % 20 == 0:
                        show(f"{files} files")
        except BaseException:
            process.kill()  # Popen's own exit waits for it
            raise
    return process.returncode, "\n".join(last_lines)


def _output(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - made by the two functions above
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[str], None]]:
    """Show a line that can be amended on a terminal."""
    logger.info("%s", what)
    with Console(stderr=True).status(what) as status:
        yield lambda text: status.update(f"{what}: {text}")
