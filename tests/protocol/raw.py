"""The independent judge: reads checkpoint, log and table as they lie there, with none of the sink's code.

The engine writes the run's id into `commits/N`, which Spark does not. So the judge knows whose attempt
was kept, and the engine remembers what each attempt computed.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from state_backends import StateBackend
from tests.protocol.engine import World
from wal_sink.testing.oracle import judge


def objects(backend: StateBackend, folder: str) -> dict[str, Any]:
    """Read a folder of JSON objects, by name without folder and ending."""
    return {
        path.removeprefix(folder).removesuffix(".json"): parsed(backend.read(path))
        for path in backend.list(folder)
    }


def parsed(data: bytes) -> dict[str, Any]:
    """Parse an object; of a manifest, segments have as `data` their bytes, which lie behind the JSON."""
    text = json_of(data)
    found: dict[str, Any] = json.loads(text)
    held = io.BytesIO(data[len(text) :])
    for segment in found.get("segments", ()):
        if "data" in segment:
            segment["data"] = held.read(segment["bytes"])
    assert not held.read()
    return found


def last_us(record: Mapping[str, Any]) -> int:
    """Return the highest timestamp that the rows of a flushed epoch have, as its record says."""
    return int(record["base_us"] + max(record["rows"], 1) - 1)


def json_of(data: bytes) -> bytes:
    """Return the JSON of an object: all of it, but for what a manifest has behind it."""
    return b"".join(data.partition(b"\n}\n")[:2])


def manifest_digest(data: bytes) -> str:
    """Return the digest by which ledger and records name a manifest."""
    return hashlib.sha256(json_of(data)).hexdigest()


def manifest_file(fields: dict[str, Any]) -> bytes:
    """Return the file of a manifest that `parsed` has parsed."""
    segments = [each | ({"data": ""} if "data" in each else {}) for each in fields["segments"]]
    text = json.dumps(fields | {"segments": segments}, indent=1) + "\n"
    return text.encode() + b"".join(each.get("data", b"") for each in fields["segments"])


def records(backend: StateBackend, folder: str = "flushed/") -> dict[int, Any]:
    """Read the records of flushed epochs, by epoch; of two the one with the higher timestamp counts."""
    windows = objects(backend, folder).values()
    found = sorted((each for one in windows for each in one["epochs"]), key=lambda r: r["base_us"])
    return {each["epoch"]: each for each in sorted(found, key=lambda record: record["epoch"])}


def segment_bytes(backend: StateBackend, segment: dict[str, Any]) -> bytes:
    """Return a segment's bytes: they are in its manifest, or in a file."""
    if "data" in segment:
        assert segment["path"] not in backend.list("segments/")
        held: bytes = segment["data"]
        return held
    return backend.read(segment["path"])


def sources(plan: str) -> str:
    """Return what a file of `offsets/` says of the sources, without the time of the batch."""
    return plan.split("\n", 2)[2]


def body_run(data: bytes) -> str | None:
    """Return which run wrote a file of `commits/`; None: a tool."""
    found: dict[str, Any] = json.loads(data.split(b"\n")[1])
    return found.get("by")


def kept(world: World) -> dict[int, str]:
    """Return who wrote `commits/N`, by epoch; purged ones as they were when they were written."""
    found = dict(world.keepers)
    for path in world.checkpoint.list("commits/"):
        run = body_run(world.checkpoint.read(path))
        assert run is not None, f"a tool made {path}"
        found[int(path.removeprefix("commits/"))] = run
    return found


def newest(epochs: Iterable[int], world: World) -> dict[str, int]:
    """Lay the kept attempts of epochs over each other, as the table should show them."""
    table: dict[str, int | None] = {}
    whose = kept(world)
    for epoch in sorted(epochs):
        table.update(world.computed.get((epoch, whose[epoch]), ()))
    return {key: value for key, value in table.items() if value is not None}


def expected(epochs: int, world: World) -> list[tuple[str, int]]:
    """Return the rows that the table should have: the last one of each key, or all where they are added."""
    if not world.adds:
        return list(newest(range(epochs), world).items())
    whose = kept(world)
    rows = (row for n in range(epochs) for row in world.computed.get((n, whose[n]), ()))
    return [(key, value) for key, value in rows if value is not None]


def safe(world: World, why: object) -> None:
    """At any moment: what is visible was kept, whole attempts are not mixed, nothing needed is gone."""
    whose = kept(world)
    wrote: dict[int, set[str]] = {}
    for key, value in world.visible():
        found = {a for a, rows in world.computed.items() if (key, value) in rows}
        assert found, f"{key} was never computed ({why})"
        for epoch, run in found:
            wrote.setdefault(epoch, set()).add(run)
            assert epoch in whose, f"a row of epoch {epoch} without commits/{epoch} ({why})"
    mixed = {epoch: runs for epoch, runs in wrote.items() if len(runs) > 1}
    assert not mixed, f"two attempts at one epoch are visible: {mixed} ({why})"
    strangers = {epoch: runs for epoch, runs in wrote.items() if runs != {whose[epoch]}}
    assert not strangers, f"rows of attempts that Spark did not keep: {strangers} ({why})"
    needed_is_there(world, why)


def needed_is_there(world: World, why: object) -> None:
    """Every segment of a kept attempt above the flushed mark exists, to the byte."""
    backend = world.log_backend
    mark = max(records(backend), default=-1)
    whose = kept(world)
    for manifest in objects(backend, "manifests/").values():
        epoch = manifest["epoch"]
        ledger = world.ledger()
        if epoch <= max(mark, ledger.flushed if ledger else -1):
            continue
        if whose.get(epoch) == manifest["run_id"]:
            for segment in manifest["segments"]:
                data = segment_bytes(backend, segment)
                found = (len(data), hashlib.sha256(data).hexdigest())
                assert found == (segment["bytes"], segment["digest"]), why


def complete(world: World, epochs: int, why: object) -> None:
    """At the end: every kept row once and none extra, marks without gaps, timestamps that grow, no rest."""
    safe(world, why)
    assert sorted(kept(world)) == list(range(epochs)), why
    verdict = judge(expected(epochs, world), world.visible())
    assert verdict.exact, f"{verdict} ({why})"
    backend = world.log_backend
    flushed = list(records(backend).values())
    assert [record["epoch"] for record in flushed] == list(range(epochs)), why
    ledger = world.ledger()
    assert ledger is not None
    assert (ledger.flushed, ledger.begun) == (epochs - 1, None), why
    for older, newer in pairwise(flushed):
        assert newer["base_us"] > last_us(older), why
    for (key,), row in world.store.table.items() if world.dates else ():
        (epoch,) = {
            e for (e, _), rows in world.computed.items() if (key, row.cells["v"].value) in rows
        }
        record = flushed[epoch]
        assert 0 <= row.cells["v"].us - record["base_us"] < record["rows"], f"{key} ({why})"
    world.flush()  # a flusher that starts deletes what goes every hour
    left = {path.split("/")[0] for path in backend.list()}
    assert left <= {"flushed", "log.json", "plans", "quarantine", "runs", "tickets"}, (
        f"{left} ({why})"
    )
