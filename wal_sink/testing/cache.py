"""Says where the test kit keeps what it makes or downloads once."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder in the user's cache for what is made or downloaded once; it need not be there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "wal_sink"
