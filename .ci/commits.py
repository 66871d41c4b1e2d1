"""Check commit subjects: `area: imperative`, at most 72 characters, no full stop.

`commits.py FILE` checks one message: git's hook `commit-msg` calls it so. Without an argument the last 20
commits are checked. Merges are left out, since git writes their subjects.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST, CHECKED = 72, 20
SUBJECT = re.compile(r"[a-z0-9_./, -]+: \S.*[^.]")


def faults(subject: str) -> Iterator[str]:
    """Yield what is wrong with a subject."""
    if len(subject) > LONGEST:
        yield f"has {len(subject)} characters, at most {LONGEST} are allowed; move the rest to the body"
    if not SUBJECT.fullmatch(subject):
        yield "is not `area: what it does`, without a full stop"


def subjects() -> list[str]:
    """Return the subjects to check."""
    if len(sys.argv) > 1:
        return Path(sys.argv[1]).read_text().splitlines()[:1]
    if not Path(".git").exists():
        return []  # a source distribution has no history
    log = ["git", "log", f"--max-count={CHECKED}", "--no-merges", "--format=%s"]
    return subprocess.run(log, check=True, capture_output=True, text=True).stdout.splitlines()  # noqa: S603


if wrong := [f"{text!r} {fault}" for text in subjects() for fault in faults(text)]:
    sys.exit("Commit subject " + "\nCommit subject ".join(wrong))
