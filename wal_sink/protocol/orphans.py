"""Decides whether segments that no manifest names may still get one (rule 18). Pure.

Only the run that wrote a segment can publish it, under one generation: that of its ticket + 1 (rule 3).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Fate = Literal["open", "fenced", "void"]
"""What may become of segments that no manifest names:

- `open`: their run may publish them, and Spark may keep that.
- `fenced`: a higher generation is claimed. The run may still create a manifest, if it had passed its checks
  before; it looks again then, and Spark does not keep that attempt (rule 7).
- `void`: their run will never create a manifest, for another run has claimed its generation.
"""


class Writer(NamedTuple):
    """The run that wrote a segment, as far as the log tells."""

    run_id: str
    generation: int
    """The one that it has claimed, or would claim."""
    claimed_by: str | None
    """The run that has claimed this generation; None: no run, or its record is gone."""


def fate(writer: Writer, highest: int) -> Fate:
    """Decide about segments that no manifest names.

    :param highest: the highest generation that is claimed.
    """
    if writer.claimed_by not in (None, writer.run_id):
        return "void"
    return "fenced" if highest > writer.generation else "open"
