"""`inspect`: what the log holds of epochs in every state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import run
from tests.protocol.damaged import segments
from tests.protocol.engine import World
from tests.protocol.operators import edit
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt


def listed(folder: Path, *arguments: object) -> list[tuple[Any, ...]]:
    """Epoch, generation, state and rows of each line."""
    found = run(folder, "inspect", "checkpoint", "--json", *arguments)
    assert found.code == 0, found.err
    names = ("epoch", "generation", "state", "rows")
    return [tuple(line[name] for name in names) for line in found.document["epochs"]]


@pytest.fixture
def busy(world: World) -> World:
    """Epoch 0 is flushed, 1 was published twice, 2 waits, 3 is published only."""
    first = world.run().flushed_batches([("a", 0)])
    first.publish([("dead", 1), ("dead too", 1)])
    second = world.run().batches([("b", 1)])
    second.batch([("c", 2), ("d", 2)], [("e", 2)])
    second.publish([("f", 3)])
    return world


def test_epochs_and_their_states(busy: World, tmp_path: Path) -> None:
    """Attempts of dead runs are told from those that will be flushed."""
    assert listed(tmp_path) == [
        (0, 1, "flushed", 1),
        (1, 1, "superseded", 2),
        (1, 2, "waiting", 1),
        (2, 2, "waiting", 3),
        (3, 2, "not checkpointed", 1),
    ]
    said = run(tmp_path, "inspect", "checkpoint")
    assert said.code == 0
    for word in ("flushed", "superseded", "waiting", "not checkpointed", "--ledger"):
        assert word in said.out
    assert busy.query_id in said.out


def test_a_long_log_is_cut_in_the_middle(world: World, tmp_path: Path) -> None:
    """What is flushed newest and what is flushed next stand beside each other."""
    batches = world.run()
    for epoch in range(8):
        batches.batch([(f"k{epoch}", epoch)])
        if epoch == 3:
            world.flush()
    found = run(tmp_path, "inspect", "checkpoint", "--json", "--most", "2").document
    assert [line["epoch"] for line in found["epochs"]] == [2, 3, 4, 5]
    assert (found["left_out_flushed"], found["left_out_waiting"]) == (2, 2)
    assert "Left out: 2 flushed" in run(tmp_path, "inspect", "checkpoint", "--most", "2").out


def test_what_is_damaged_or_missing_hides_nothing_else(busy: World, tmp_path: Path) -> None:
    """Nor does it end the command: `verify` is there for the exit code."""
    edit(busy.log_backend, paths.MANIFEST.path(Attempt(2, 2)), b"{")
    assert (2, 2, "damaged", None) in listed(tmp_path)
    assert "CorruptLog" in run(tmp_path, "inspect", "checkpoint").out
    edit(busy.log_backend, paths.MANIFEST.path(Attempt(2, 2)), None)
    assert (2, None, "no manifest", None) in listed(tmp_path)
    assert (3, 2, "not checkpointed", 1) in listed(tmp_path)
    gone = run(tmp_path, "inspect", "checkpoint", 2, "--json")
    assert (gone.code, gone.document["error"]) == (6, "MissingManifest")


def test_an_epoch_that_waits(busy: World, tmp_path: Path) -> None:
    """Segments with their tasks, source offsets, schema, run, and rows as text."""
    found = run(tmp_path, "inspect", "checkpoint", 2, "--json").document
    assert (found["epoch"], found["checkpointed"], found["flushed"]) == (2, True, None)
    (attempt,) = found["attempts"]
    assert (attempt["generation"], attempt["state"], attempt["rows"]) == (2, "waiting", 3)
    assert attempt["run_id"] == busy.keepers[2]
    assert attempt["offsets"] == ['{"offset":2}']
    assert [column["name"] for column in attempt["columns"]] == ["k", "v"]
    assert [segment["partition"] for segment in attempt["segments"]] == [0, 1]
    assert [segment["rows"] for segment in attempt["segments"]] == [2, 1]
    assert [segment["path"] for segment in attempt["segments"]] == segments(busy)
    assert attempt["sample"] == [{"k": k, "v": "2"} for k in "cde"]
    some = run(tmp_path, "inspect", "checkpoint", 2, "--rows", "1", "--json").document
    assert len(some["attempts"][0]["sample"]) == 1
    none = run(tmp_path, "inspect", "checkpoint", 2, "--rows", "0", "--json").document
    assert none["attempts"][0]["sample"] == []
    said = run(tmp_path, "inspect", "checkpoint", 2).out
    for word in ("generation", "waiting", '{"offset":2}', "Schema", "Segments", "Some rows"):
        assert word in said


def test_an_epoch_that_is_flushed(busy: World, tmp_path: Path) -> None:
    """Its record is left, with the timestamps of its rows."""
    found = run(tmp_path, "inspect", "checkpoint", 0, "--json").document
    assert (found["flushed"]["rows"], found["attempts"]) == (1, [])
    assert abs(found["flushed"]["base_us"] / 1_000_000 - time.time()) < 600
    said = run(tmp_path, "inspect", "checkpoint", 0).out
    assert f"timestamps from {found['flushed']['base_us']}" in said.replace("\n", " ")
    assert "its rows are in the table" in said
    never = run(tmp_path, "inspect", "checkpoint", 9, "--json")
    assert (never.code, never.document["error"]) == (2, "OptionError")
    assert busy.table() == {"a": 0}


def test_a_damaged_segment_is_not_shown_as_rows(busy: World, tmp_path: Path) -> None:
    """The rest of the epoch is."""
    path = segments(busy)[0]
    edit(busy.log_backend, path, busy.log_backend.read(path)[:-1])
    found = run(tmp_path, "inspect", "checkpoint", 2, "--json")
    (attempt,) = found.document["attempts"]
    assert (found.code, attempt["sample"], attempt["rows"]) == (0, [], 3)
    assert "CorruptLog" in attempt["problems"][0]


def test_values_do_not_steer_the_terminal(world: World, tmp_path: Path) -> None:
    """Nor does markup in them style it, nor a long one fill it."""
    world.run().batch([("\x1b[2J[red]bold\n", 1), ("x" * 10_000, 2)])
    said = run(tmp_path, "inspect", "checkpoint", 0).out
    assert "\x1b" not in said
    assert r"\x1b[2J[red]bold\n" in said
    assert "x" * 30 in said
    assert len(said) < 10_000
    sample = run(tmp_path, "inspect", "checkpoint", 0, "--json").document["attempts"][0]["sample"]
    assert [len(row["k"]) for row in sample] == [len(r"\x1b[2J[red]bold\n"), 80]
