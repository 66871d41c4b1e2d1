"""Programs that a test starts."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ran(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit code; return what it printed, as text.

    :param options: of `subprocess.run`.
    """
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
