"""The quick start of README.md, as the program that it is: what readers copy is what runs."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def quick_start() -> str:
    """Return the first block of Python in README.md."""
    return _first_block("python")


def preparation() -> list[str]:
    """Return the lines of the first block of shell in README.md."""
    return _first_block("sh").splitlines()


def _first_block(language: str) -> str:
    text = README.read_text(encoding="utf-8")
    block = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if block is None:
        raise LookupError(f"{README} has no block of {language}")
    return block[1]
