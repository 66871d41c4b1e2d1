"""Reads the options of a log's newest run from its claim: what rows that wait were published with."""

from __future__ import annotations

from collections.abc import Mapping

from wal_sink.model.records import Claim
from wal_sink.wal.attached import newest_anywhere
from wal_sink.wal.log import Log


def options_of_newest_run(log: Log) -> Mapping[str, str]:
    """Return the options of the newest run that has published, or has claimed its generation in order to.

    Without secrets; empty where no run has claimed one. A run that claims as it starts counts only where
    there is no other: it may never publish.
    """
    generations = log.generations(fresh=False)  # commands that only look may not write
    claim = log.claimed(max(generations, default=0))
    if claim is not None and claim.early is True:
        claim = _newest_at_work(log) or claim
    return {} if claim is None else claim.options


def _newest_at_work(log: Log) -> Claim | None:
    """Return the newest claim of a run that has published, or claimed in order to; None for none."""
    flushed = newest_anywhere(log)
    generations = [attempt.generation for attempt in log.attempts()]
    published = max([*generations, flushed.generation if flushed else 0])
    for generation in reversed(log.generations(fresh=False)):
        claim = log.claimed(generation)
        if claim is not None and (generation <= published or claim.early is not True):
            return claim
    return None
