"""Looks at a target's table when all is flushed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.attempts import Computed, newest
from tests.simulator.rows import SHARED_KEYS

if TYPE_CHECKING:
    from tests.simulator.judge import Judge
    from tests.simulator.site import Site
    from tests.simulator.target import Database


def look_at_table(judge: Judge, site: Site, database: Database) -> None:
    """Look at the table when all is flushed: every row once, no other, and the newest epoch wins."""
    target, table = database.target, database.values()
    kept = {
        epoch: attempt
        for epoch, attempt in sorted(site.kept.items())
        if attempt is not None and (target, epoch) not in site.given_up
    }
    for attempt in kept.values():
        for key, value in attempt.rows.items():
            arrival = attempt.at(target)
            # The target was restored, and the other of two histories took its ledger row.
            taken = judge.cloned and key in arrival.taken
            quarantined = key in site.quarantined(target, attempt)
            if (taken or quarantined or key in arrival.gone) and key not in table:
                continue
            if key not in SHARED_KEYS and newest(table, key) != value:
                judge.violate(
                    f"row {key} of {attempt.name} is missing in {target or 'the table'}:"
                    f" {table.get(key)} is there"
                )
    allowed = {id(attempt) for attempt in site.kept.values()}
    for key, values in table.items():
        if len(set(values)) < len(values):
            judge.violate(f"{key} has a value twice: {values}")
        for value in values:
            found = judge.by_value[value]
            fine = found.lost or (target, found.epoch) in site.given_up or judge.cloned
            if id(found) not in allowed and not fine:
                judge.violate(f"row {key} of {found.name} is there, which Spark did not keep")
    for key in SHARED_KEYS:
        _newest_wins(judge, site, database, key, kept)


def _newest_wins(
    judge: Judge, site: Site, database: Database, key: str, kept: dict[int, Computed]
) -> None:
    """Look at a key that many epochs write: the last one stays."""
    target, table = database.target, database.values()
    wrote = [
        attempt.value
        for attempt in kept.values()
        if key in attempt.rows
        and key not in attempt.at(target).gone
        and key not in site.quarantined(target, attempt)
    ]
    if not wrote or judge.cloned:
        return
    last = judge.by_value[wrote[-1]]
    value = newest(table, key)
    shown = None if value is None else judge.by_value[value]
    stays = shown is not None and (
        (target, shown.epoch) in site.given_up
        # The server took it at one try and refused it at another one: docs/limits.md.
        or key in site.quarantined(target, shown)
        or (shown.lost and shown.begun_last(target) > last.begun_last(target))
        or (shown.lost and shown.at(target).begun_us <= judge.timestamps_lost_us)
        # A backup of the target was restored: what it has of the last one may be from before.
        or (shown.lost and last.at(target).begun_us <= judge.row_lost_us.get(target, 0))
        # It has come, with an older timestamp.
        or (
            not judge.clocks_agree
            and key in last.at(target).keys
            and judge.left_behind(target, shown, database.table[key].us)
        )
    )
    if shown is not last and not stays:
        judge.violate(f"the newest value of {key} is of {last.name}, not {shown}")
