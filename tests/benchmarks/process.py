"""Runs other Python processes of the benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def result_of(module: str, argument: str) -> str:
    """Run a module with one argument; return its output.

    :raises subprocess.CalledProcessError: if it fails.
    """
    command = [sys.executable, "-m", module, argument]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
