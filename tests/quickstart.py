"""The quick start of README.md, as the program that it is: what readers copy is what runs."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def quick_start() -> str:
    """Return the first block of Python in README.md.

    :raises LookupError: there is none.
    """
    block = _BLOCK.search(README.read_text(encoding="utf-8"))
    if block is None:
        raise LookupError(f"{README} has no block of Python")
    return block[1]
