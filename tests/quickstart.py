"""The example of README.md, as the program that it is: what readers copy is what runs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
EXAMPLE = ROOT / "examples" / "quickstart.py"


def quick_start() -> str:
    """Return the program: the longest block of Python in README.md."""
    return max(_blocks("python"), key=len)


def commands() -> list[str]:
    """Return the lines of all blocks of shell in README.md."""
    return [line for block in _blocks("sh") for line in block.splitlines()]


def _blocks(language: str) -> list[str]:
    text = README.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
