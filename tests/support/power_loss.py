"""A simulated power loss: files and names that were not synced are deleted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


class Power:
    """Records the calls of `os.fsync` for a folder; its present content counts as synced."""

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
        """Record a synced file, or the names in a synced folder."""
        if path.is_dir():
            self._named.update(path.iterdir())
        else:
            self._contents.add(path)

    def lose(self) -> None:
        """Delete each file and folder that was not synced."""
        for path in self._folder.rglob("*"):
            if path.is_dir():
                if path not in self._named:
                    shutil.rmtree(path)
            elif path not in self._named & self._contents:
                path.unlink(missing_ok=True)
