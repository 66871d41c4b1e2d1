"""Prints each setting: `python -m tests.protocol.state_model [switches] [NAME]`.

A line has states, time, the broken promise, and errors that stay.
"""

from __future__ import annotations

import sys

from tests.protocol.state_model.explore import Result, explore
from tests.protocol.state_model.settings import SETTINGS, Case
from tests.protocol.state_model.switched_off import SWITCHED_OFF


def line(case: Case, result: Result) -> str:
    """Return the line of a setting."""
    end = f"{result.broken} ({len(result.trace)} steps)" if result.broken else "nothing broken"
    if not result.complete and not result.broken:
        end += ", not to the end"
    stops = "; ".join(
        f"{stop} ({len(trace)} steps)" for stop, (_, trace) in sorted(result.stops.items())
    )
    return f"| {case.name} | {result.states:,} | {result.seconds:.0f} | {end} | {stops or '-'} |"


def main(words: list[str]) -> None:
    """Print the settings, or the switches; with a name, also the traces."""
    cases = SWITCHED_OFF if words[:1] == ["switches"] else SETTINGS
    name = " ".join(words[1:] if words[:1] == ["switches"] else words)
    for case in cases:
        if name not in case.name:
            continue
        result = explore(case.setting, 180 if case.long else 60)
        sys.stdout.write(line(case, result) + "\n")
        if name:
            sys.stdout.write("".join(f"    {step}\n" for step in result.trace))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
