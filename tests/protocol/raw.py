"""The independent checker: reads checkpoint, log and table as they lie there, with none of the sink's code.

The engine writes the run's id into `commits/N`, which Spark does not. So the checker knows whose attempt
was kept, and the engine remembers what each attempt computed.
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
from wal_sink.demo.compare import compare_rows


def objects(backend: StateBackend, folder: str) -> dict[str, Any]:
    """Read a folder of JSON objects, by name without folder and ending."""
    return {
        path.removeprefix(folder).removesuffix(".json"): parsed(backend.read(path))
        for path in backend.list(folder)
    }


def parsed(data: bytes) -> dict[str, Any]:
    """Parse an object; of a manifest, segments have as `data` their bytes, which follow the JSON."""
    text = json_of(data)
    result: dict[str, Any] = json.loads(text)
    held = io.BytesIO(data[len(text) :])
    for segment in result.get("segments", ()):
        if "data" in segment:
            segment["data"] = held.read(segment["bytes"])
    assert not held.read()
    return result


def json_of(data: bytes) -> bytes:
    """Return the JSON of an object: all of it, but for what follows it in a manifest."""
    return b"".join(data.partition(b"\n}\n")[:2])


def manifest_digest(data: bytes) -> str:
    """Return the digest by which ledger and records name a manifest."""
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
    """Return the last epoch that the log says is in each target, by the target's name."""
    return {item["name"]: item["mark"]["epoch"] for item in state(backend).get("targets", ())}


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
    result: dict[str, Any] = json.loads(data.split(b"\n")[1])
    return result.get("by")


def kept(world: World) -> dict[int, str]:
    """Return who wrote `commits/N`, by epoch; purged ones as they were when they were written."""
    result = dict(world.keepers)
    for path in world.checkpoint.list("commits/"):
        run = body_run(world.checkpoint.read(path))
        assert run is not None, f"a tool made {path}"
        result[int(path.removeprefix("commits/"))] = run
    return result


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


def whole(world: World, reason: object) -> dict[int, set[str]]:
    """At any moment: what is visible is completed, and attempts at one epoch are not mixed.

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
    """At any moment: what is visible was kept, whole attempts are not mixed, nothing needed is gone."""
    for view in world.views():
        _safe(view, reason)


def _safe(world: World, reason: object) -> None:
    whose, wrote = kept(world), whole(world, reason)
    strangers = {epoch: runs for epoch, runs in wrote.items() if runs != {whose[epoch]}}
    assert not strangers, f"rows of attempts that Spark did not keep: {strangers} ({reason})"
    needed_is_there(world, reason)


def needed_is_there(world: World, reason: object) -> None:
    """Every segment of a kept attempt that a target may lack exists, to the byte."""
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
                result = (len(data), hashlib.sha256(data).hexdigest())
                assert result == (segment["bytes"], segment["digest"]), reason


def complete(world: World, epochs: int, reason: object) -> None:
    """At the end: every kept row once and none extra, mark and ledger at the end, nothing left."""
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
