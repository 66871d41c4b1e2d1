"""Finds the Java that runs a server of tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from wal_sink.errors import WalSinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Asks the kernel to kill this process when its parent dies, then becomes the command. (The same in
# a `preexec_fn` would run between fork and exec, where a parent with threads can deadlock.)
_TIE = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, ctypes.c_ulong(9))  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):  # otherwise the parent died before the kernel was asked
    os.execv(sys.argv[2], sys.argv[2:])
"""


class JavaNotFound(WalSinkError):
    """There is no Java of the version that is needed."""

    exit_code = 2


def java_command(version: str, opened: Sequence[str] = ()) -> list[str]:
    """Return the command that runs Java of that major version, from JAVA_HOME or else from PATH.

    On Linux the process that it starts dies with the *thread* that starts it, however that one ends.

    :param opened: packages of Java's own modules that the program looks into, as `java.base/java.nio`.
    :raises JavaNotFound: neither has it.
    """
    home = os.environ.get("JAVA_HOME")
    found: list[str] = []
    for name, path in (("JAVA_HOME", f"{home}/bin" if home else ""), ("PATH", None)):
        java = shutil.which("java", path=path)
        if java is None:
            found.append(f"{name} has none")
            continue
        told = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, check=False
        )
        match = re.search(r'version "(\d+)', told.stderr)  # "17.0.15", also "17"
        if match and match[1] == version:
            tie = [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid())]
            opens = [f"--add-opens={package}=ALL-UNNAMED" for package in opened]
            return [*(tie if sys.platform == "linux" else ()), java, *opens]
        found.append(f"{name} has {java}, of version {match[1] if match else 'unknown'}")
    raise JavaNotFound(
        f"Java {version} is needed: {', '.join(found)}.",
        f"Install a Java {version} runtime (Debian and Ubuntu: `apt install openjdk-{version}-jre-"
        f"headless`; macOS: `brew install openjdk@{version}`) and set JAVA_HOME to its folder.",
    )
