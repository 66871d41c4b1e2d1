"""Identifiers of databases that quote them by the SQL standard, and what a misspelt one may have meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def quote(name: str) -> str:
    """Quote an identifier; its case is kept."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Quote identifiers, as statements list them."""
    return ", ".join(map(quote, names))


def unquoted(names: str) -> str:
    """Return quoted identifiers with dots between them as a person writes them in an option.

    By the SQL standard, or as MySQL quotes them; others are returned as they are.
    """
    parts = re.findall(r'"(?:[^"]|"")*"|`(?:[^`]|``)*`', names)
    return ".".join(part[1:-1].replace(part[-1] * 2, part[-1]) for part in parts) or names


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known name nearest to `name`; empty when none is near."""
    known = sorted(known)
    for other in known:
        if other.lower() == name.lower():
            return f"There is {other}, which differs in upper and lower case only: names are exact."
    by_lower = {other.lower(): other for other in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[nearest[0]]}?" if nearest else ""
