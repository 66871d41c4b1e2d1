"""A thread that runs for as long as a block."""

from __future__ import annotations

import threading
from typing import Self


class Background(threading.Thread):
    """Runs until its `with` block is left, which sets `_left`."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self.join()
