"""The example of README.md and docs/quickstart.md as a program."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "quickstart.md"
EXAMPLE = ROOT / "examples" / "quickstart.py"


def quick_start(page: Path = README) -> str:
    """Return the program: the block of Python that begins with imports."""
    (program,) = (block for block in _blocks("python", page) if block.startswith("import "))
    return program


def commands() -> list[str]:
    """Return the lines of all shell blocks in README.md."""
    return [line for block in _blocks("sh", README) for line in block.splitlines()]


def _blocks(language: str, page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
