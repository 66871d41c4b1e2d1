"""The independent checker: reads checkpoint, log and table with none of the sink's code.

The engine writes the run's id into `commits/N`, which Spark does not do, and remembers the rows of each
attempt. So the checker knows whose attempt Spark kept.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from state_backends import StateBackend
from tests.protocol.engine import World
from wal_sink.demo.outcome import compare_rows


def objects(backend: StateBackend, folder: str) -> dict[str, Any]:
    """Read a folder of JSON objects, by name without folder and suffix."""
    return {
        path.removeprefix(folder).removesuffix(".json"): parsed(backend.read(path))
        for path in backend.list(folder)
    }


def parsed(data: bytes) -> dict[str, Any]:
    """Parse an object. In a manifest, inlined segments get the bytes that follow the JSON as `data`."""
    text = json_of(data)
    result: dict[str, Any] = json.loads(text)
    held = io.BytesIO(data[len(text) :])
    for segment in result.get("segments", ()):
        if "data" in segment:
            segment["data"] = held.read(segment["bytes"])
    assert not held.read()
    return result


def json_of(data: bytes) -> bytes:
    """Return the JSON of an object, without the bytes that follow it in a manifest."""
    return b"".join(data.partition(b"\n}\n")[:2])


def manifest_digest(data: bytes) -> str:
    """Return the digest by which ledger rows and states name a manifest."""
    return hashlib.sha256(json_of(data)).hexdigest()


def manifest_file(fields: dict[str, Any]) -> bytes:
    """Return the file of a manifest that `parsed` has parsed."""
    segments = [field | ({"data": ""} if "data" in field else {}) for field in fields["segments"]]
    text = json.dumps(fields | {"segments": segments}, indent=1) + "\n"
    return text.encode() + b"".join(field.get("data", b"") for field in fields["segments"])


def state(backend: StateBackend) -> dict[str, Any]:
    """Read the newest state; empty before the first run."""
    states = objects(backend, "state/")
    return states[max(states)] if states else {}


def marks(backend: StateBackend) -> dict[str, int]:
    """Return the mark of each target by the target's name."""
    return {item["name"]: item["mark"]["epoch"] for item in state(backend).get("targets", ())}


def segment_bytes(backend: StateBackend, segment: dict[str, Any]) -> bytes:
    """Return a segment's bytes, from its manifest or its file."""
    if "data" in segment:
        assert segment["path"] not in backend.list("segments/")
        held: bytes = segment["data"]
        return held
    return backend.read(segment["path"])


def sources(plan: str) -> str:
    """Return the source offsets of a file of `offsets/`, without the time of the batch."""
    return plan.split("\n", 2)[2]


def body_run(data: bytes) -> str | None:
    """Return the run that wrote a file of `commits/`; None if a tool wrote it."""
    commit: dict[str, Any] = json.loads(data.split(b"\n")[1])
    return commit.get("by")


def kept(world: World) -> dict[int, str]:
    """Return the run that wrote `commits/N`, by epoch, with files that were purged since."""
    runs = dict(world.keepers)
    for path in world.checkpoint.list("commits/"):
        run = body_run(world.checkpoint.read(path))
        assert run is not None, f"a tool made {path}"
        runs[int(path.removeprefix("commits/"))] = run
    return runs


def newest(epochs: Iterable[int], world: World) -> dict[str, int]:
    """Return the table after the kept attempts of these epochs, in order."""
    table: dict[str, int | None] = {}
    whose = kept(world)
    for epoch in sorted(epochs):
        table.update(world.computed.get((epoch, whose[epoch]), ()))
    return {key: value for key, value in table.items() if value is not None}


def expected(epochs: int, world: World) -> list[tuple[str, int]]:
    """Return the rows that the table should have: the last row of each key, or all appended rows."""
    if not world.adds:
        return list(newest(range(epochs), world).items())
    whose = kept(world)
    rows = (row for n in range(epochs) for row in world.computed.get((n, whose[n]), ()))
    return [(key, value) for key, value in rows if value is not None]


def whole(world: World, reason: object) -> dict[int, set[str]]:
    """Check, at any moment, that visible rows are completed, and that no epoch mixes two attempts.

    Return the runs whose rows are visible, by epoch.
    """
    whose = kept(world)
    wrote: dict[int, set[str]] = {}
    for key, value in world.visible():
        attempts = {a for a, rows in world.computed.items() if (key, value) in rows}
        assert attempts, f"{key} was never computed ({reason})"
        for epoch, run in attempts:
            wrote.setdefault(epoch, set()).add(run)
            assert epoch in whose, f"a row of epoch {epoch} without commits/{epoch} ({reason})"
    mixed = {epoch: runs for epoch, runs in wrote.items() if len(runs) > 1}
    assert not mixed, f"two attempts at one epoch are visible: {mixed} ({reason})"
    return wrote


def safe(world: World, reason: object) -> None:
    """Check, at any moment, that visible rows are of kept attempts, and that no needed object is gone."""
    for view in world.views():
        _safe(view, reason)


def _safe(world: World, reason: object) -> None:
    whose, wrote = kept(world), whole(world, reason)
    strangers = {epoch: runs for epoch, runs in wrote.items() if runs != {whose[epoch]}}
    assert not strangers, f"rows of attempts that Spark did not keep: {strangers} ({reason})"
    needed_is_there(world, reason)


def needed_is_there(world: World, reason: object) -> None:
    """Check that every segment of a kept attempt that a target may lack exists, to the byte."""
    backend = world.log_backend
    mark = min(marks(backend).values(), default=-1)
    whose = kept(world)
    for manifest in objects(backend, "manifests/").values():
        epoch = manifest["epoch"]
        ledger = world.ledger()
        if epoch <= max(mark, ledger.epoch if ledger else -1):
            continue
        if whose.get(epoch) == manifest["run_id"]:
            for segment in manifest["segments"]:
                data = segment_bytes(backend, segment)
                actual = (len(data), hashlib.sha256(data).hexdigest())
                assert actual == (segment["bytes"], segment["digest"]), reason


def complete(world: World, epochs: int, reason: object) -> None:
    """Check, at the end, that exactly the kept rows are visible, and that only the last state is left."""
    safe(world, reason)
    assert sorted(kept(world)) == list(range(epochs)), reason
    for view in world.views():
        _complete(view, epochs, reason)
    world.flush()
    remaining = {path.split("/")[0] for path in world.log_backend.list()}
    assert remaining <= {"state", "plans", "agreed.json", "refused"}, f"{remaining} ({reason})"


def _complete(world: World, epochs: int, reason: object) -> None:
    counts = compare_rows(expected(epochs, world), world.visible())
    assert counts.exact, f"{counts} ({reason})"
    backend = world.log_backend
    newest_state = state(backend)
    assert set(marks(backend).values()) == {epochs - 1}, reason
    assert (newest_state["last"]["epoch"], newest_state["settled"]) == (epochs - 1, epochs - 1), (
        reason
    )
    ledger = world.ledger()
    assert ledger is not None, reason
    assert (ledger.epoch, ledger.digest) == (epochs - 1, newest_state["last"]["digest"]), reason
    dated = [
        (epoch, row.cells["v"].us)
        for (key,), row in world.store_target.table.items()
        for (epoch, _), rows in world.computed.items()
        if world.dates and (key, row.cells["v"].value) in rows
    ]
    for (epoch, us), (later, later_us) in pairwise(sorted(dated)):
        assert epoch == later or us < later_us, reason
