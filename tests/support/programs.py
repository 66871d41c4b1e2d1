"""Runs programs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ran(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program until it ends, with any exit code; return its output as text.

    :param options: options of `subprocess.run`.
    """
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
