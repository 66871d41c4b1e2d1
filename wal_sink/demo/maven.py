"""Finds Java, and downloads Maven artifacts with their dependencies, for the servers of tests and demo.

Ivy, which PySpark contains, downloads the jars, so Maven need not be installed. If Ivy fails, an installed
Maven is tried, since its settings may name a mirror.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from wal_sink.errors import WalSinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# This program asks the kernel to kill its process when the parent dies, and then executes the command. A
# `preexec_fn` would run between fork and exec, and can deadlock if the parent has threads.
_TIE = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, ctypes.c_ulong(9))  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):  # otherwise the parent has died before the request to the kernel
    os.execv(sys.argv[2], sys.argv[2:])
"""


_JAVA = "17"
"""The major version of Java."""


class JavaNotFound(WalSinkError):
    """The machine has no Java 17."""

    exit_code = 2


def java_command(opened: Sequence[str] = ()) -> list[str]:
    """Return the command of Java 17, from JAVA_HOME or PATH.

    The process of this command dies with the *thread* that starts it, also at a SIGKILL of this process.

    :param opened: packages of Java that the program accesses by reflection, such as `java.base/java.nio`.
    :raises JavaNotFound: neither JAVA_HOME nor PATH has Java 17.
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
        f"headless`), and set JAVA_HOME to its folder.",
    )


def cache_folder() -> Path:
    """Return the folder for downloads in the user's cache, which may not exist yet."""
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
    """A Maven artifact, or one of its dependencies, could not be downloaded."""

    exit_code = 4


class Artifact(NamedTuple):
    """The coordinates of a Maven artifact."""

    group: str
    name: str
    version: str

    def __str__(self) -> str:
        return ":".join(self)


def jars(artifact: Artifact, name: str) -> Path:
    """Return a folder with the jars of an artifact and of its dependencies at run time.

    :param name: the name of the folder in `cache_folder`.
    :raises JavaNotFound: see `java_command`.
    :raises JarsNotResolved: neither Ivy nor Maven could download all jars.
    """
    return made_once(cache_folder() / name, partial(_download, artifact))


def made_once(folder: Path, make: Callable[[Path], Path]) -> Path:
    """Return a folder, which the first call makes.

    A rename makes the folder last, so an existing folder is complete. If several processes make the folder at
    the same time, the first rename wins.

    :param make: fills a temporary folder, and returns the path in it that is renamed to `folder`.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
            complete = make(Path(work))
            try:
                complete.rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another process has made the same folder
                    raise
    return folder


def _download(artifact: Artifact, work: Path) -> Path:
    """Download the jars by Ivy, or by Maven if Ivy fails; return the folder of the jars."""
    failures: list[str] = []
    for tool, prepare in (("Ivy", _ivy), ("Maven", _maven)):
        target = work / tool / "jars"
        target.parent.mkdir()
        command = prepare(artifact, target)
        if command is None:
            failures.append(f"{tool}: not installed")
            continue
        status, last_lines = _run(command, f"Downloading {artifact} with {tool}, once")
        if status == 0 and (target / f"{artifact.name}-{artifact.version}.jar").is_file():
            return target
        logger.warning("%s could not download %s (exit status %d)", tool, artifact, status)
        failures.append(f"{tool}: exit status {status}\n{last_lines}")
    raise JarsNotResolved(
        f"{artifact} could not be downloaded.\n" + "\n".join(failures),
        "Check the network. If it needs a proxy, name the proxy in the environment variable "
        "JAVA_TOOL_OPTIONS (-Dhttps.proxyHost=… -Dhttps.proxyPort=…). If it has a mirror, install Maven "
        "(`mvn`), and name the mirror in Maven's settings.xml.",
    )


def _ivy(artifact: Artifact, target: Path) -> list[str] | None:
    """Return Ivy's command; None if PySpark is not installed."""
    pyspark = importlib.util.find_spec("pyspark")  # without an import, which is slow
    places = (pyspark.submodule_search_locations if pyspark else None) or []
    ivy = next((jar for place in places for jar in Path(place).glob("jars/ivy-*.jar")), None)
    if ivy is None:
        return None
    return [
        *(*java_command(), "-jar", str(ivy)),
        *("-cache", str(target.with_name("cache"))),  # two processes cannot share Ivy's usual cache
        *("-confs", "default"),
        *("-dependency", *artifact),
        *("-types", "jar", "bundle"),  # some jars have the type `bundle`
        *("-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"),
    ]


def _maven(artifact: Artifact, target: Path) -> list[str] | None:
    """Return Maven's command; None if Maven is not installed."""
    mvn = shutil.which("mvn")
    if mvn is None:
        return None
    pom = target.with_name("pom.xml")
    pom.write_text(_POM.format(**artifact._asdict()))
    return [
        *(mvn, "--batch-mode", "--file", str(pom), "dependency:copy-dependencies"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={target}"),
    ]


def _run(command: list[str], description: str) -> tuple[int, str]:
    """Run a command; return its exit status and the last lines of its output.

    :param description: the text that the terminal shows meanwhile.
    """
    logger.info("%s", description)
    with Console(stderr=True).status(description):
        done = subprocess.run(  # noqa: S603 - a command of `_ivy` or `_maven`
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    lines = [line.rstrip() for line in done.stdout.splitlines() if not line.isspace()]
    return done.returncode, "\n".join(lines[-30:])
