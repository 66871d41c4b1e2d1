"""What can be done with a local folder only, beside what every store can."""

from __future__ import annotations

from pathlib import Path

_LOCAL = "file://"


def local_folder(url: str) -> Path | None:
    """Return the folder that a URL names, None where it is in another kind of store."""
    return Path(url.removeprefix(_LOCAL)) if url.startswith(_LOCAL) else None
