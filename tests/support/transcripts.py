"""The transcripts of docs/mistakes.md, with which tests compare output."""

from __future__ import annotations

import re
from pathlib import Path

MISTAKES = Path(__file__).parents[2] / "docs" / "mistakes.md"


def transcript(mistake: str) -> str:
    """Return the transcript of a mistake, by its heading."""
    text = MISTAKES.read_text(encoding="utf-8")
    match = re.search(rf"(?ims)^## {mistake}$.*?^```text\n(.*?)^```$", text)
    assert match, mistake
    return match[1]
