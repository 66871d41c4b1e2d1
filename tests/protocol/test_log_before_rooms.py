"""A log that the code before the rooms wrote is flushed by the code of today (format 1).

`log_before_rooms/` was written at commit 6b3ad61 and is never edited. It holds checkpoint, log, ledger row
and table as a flusher left them that died in the middle of a window. The operator had set epoch 2 aside and
accepted epoch 3 as a gap. Epoch 4 has two attempts, and a note in `kept/` proves the lower one. Epochs 4
to 7 are begun, 8 waits, and 9 is not checkpointed.
"""

from __future__ import annotations

import json
from pathlib import Path

from state_backends import open_backend
from tests.protocol.engine import World
from wal_sink.model.ledger import LedgerState, Owner, Window
from wal_sink.progress.backlog import newest_decision
from wal_sink.testing.memory_target import Cell, Row

KEPT = Path(__file__).with_name("log_before_rooms")
ROOT = "memory://before-rooms"
"""The stored URLs name it."""


def test_a_log_written_before_the_move_is_flushed_after_it() -> None:
    """Every checkpointed row that was not given up becomes visible, with the timestamps begun then."""
    ledger = json.loads((KEPT / "ledger.json").read_text(encoding="utf-8"))
    table = json.loads((KEPT / "table.json").read_text(encoding="utf-8"))
    world = _world(ledger, table["there"])
    assert newest_decision(world.log, 2) is not None
    assert newest_decision(world.log, 3) is not None

    world.flush()

    assert world.table() == table["expected"]
    mark = world.store.ledger[world.query_id]
    assert (mark.flushed, mark.begun) == (8, None)
    begun = Window.from_text(ledger["begun"])
    written = {key[0]: row.cells["v"].us for key, row in world.store.table.items()}
    assert written["kept"] == begun.epochs[0].base_us
    assert [written[key] for key in "ade"] == [begun.epochs[1].base_us + row for row in range(3)]
    assert world.log.flushed_epochs() == list(range(9))
    assert [attempt.epoch for attempt in world.log.attempts()] == [9]


def test_the_run_goes_on_after_the_move() -> None:
    """A new run publishes into the same log: the generation follows, and epoch 9 is computed again."""
    ledger = json.loads((KEPT / "ledger.json").read_text(encoding="utf-8"))
    table = json.loads((KEPT / "table.json").read_text(encoding="utf-8"))
    world = _world(ledger, table["there"])

    run = world.run()
    manifest = run.publish([("again", 9)])
    assert manifest is not None
    assert (manifest.epoch, manifest.generation) == (9, 4)
    run.write_commit([[("again", 9)]])
    world.flush()

    assert world.table() == table["expected"] | {"again": 9}


def _world(ledger: dict[str, str], there: dict[str, dict[str, int]]) -> World:
    """Put checkpoint, log, ledger row and table where their URLs say that they are."""
    world = World(open_backend(f"{ROOT}/checkpoint"), open_backend(f"{ROOT}/log"))
    world.query_id = ledger["query_id"]
    for name, backend in (("checkpoint", world.checkpoint), ("log", world.log_backend)):
        for file in sorted((KEPT / name).rglob("*")):
            if file.is_file():
                backend.create(file.relative_to(KEPT / name).as_posix(), file.read_bytes())
    owner = Owner(world.query_id, ledger["log_id"], ledger["checkpoint"])
    mark = LedgerState(
        log_id=owner.log_id,
        checkpoint=owner.checkpoint,
        flushed=int(ledger["flushed"]),
        last_us=int(ledger["last_us"]),
        begun=Window.from_text(ledger["begun"]),
        last=Window.from_text(ledger["last"]),
    )
    world.store.ledger[world.query_id] = mark
    world.store.table = {
        (key,): Row({"v": Cell(cell["v"], cell["us"])}, cell["us"]) for key, cell in there.items()
    }
    return world
