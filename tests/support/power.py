"""A machine that loses its power: what was not synced is gone, with its name or its content."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


class Power:
    """Watches what this process syncs of a folder by `os.fsync`; what is there already is durable."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._folder = folder
        self._contents = {*folder.rglob("*")}
        self._named = set(self._contents)
        fsync = os.fsync

        def sync(descriptor: int) -> None:
            fsync(descriptor)
            self.synced(Path(f"/proc/self/fd/{descriptor}").readlink())

        patch.setattr(os, "fsync", sync)

    def synced(self, path: Path) -> None:
        """Note that a file is durable, or the names in a folder."""
        if path.is_dir():
            self._named.update(path.iterdir())
        else:
            self._contents.add(path)

    def lose(self) -> None:
        """Delete what a power loss could take."""
        for path in self._folder.rglob("*"):
            if path.is_dir():
                if path not in self._named:
                    shutil.rmtree(path)
            elif path not in self._named & self._contents:
                path.unlink(missing_ok=True)
