"""`show`: epochs in every state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import run
from tests.protocol.engine import World
from wal_sink.model import paths
from wal_sink.protocol.retention import Retention


def listed(folder: Path, *arguments: object) -> list[tuple[Any, ...]]:
    """Run `show`; return epoch, state and rows of each attempt."""
    done = run(folder, "show", "checkpoint", "--json", *arguments)
    assert done.code == 0, done.err
    return [
        tuple(line[name] for name in ("epoch", "state", "rows")) for line in done.document["epochs"]
    ]


@pytest.fixture
def busy(world: World) -> World:
    """Return a query: epoch 0 is flushed, 1 has two attempts, 2 is pending, 3 is not checkpointed."""
    world.retention = Retention(us=3_600_000_000, bytes=1 << 30)
    first = world.run()
    first.flushed_batches([("a", 0)])
    second, late = world.run(), world.run()
    second.publish([("dead", 1), ("dead too", 1)])
    late.batch([("b", 1)])
    late.batch([("c", 2), ("d", 2)], [("e", 2)])
    late.publish([("f", 3)])
    return world


def test_show_lists_states_and_counts_of_epochs(busy: World, tmp_path: Path) -> None:
    assert sorted(listed(tmp_path)) == [
        (0, "flushed", 1),
        (1, "pending", 1),
        (1, "superseded", 2),
        (2, "pending", 3),
        (3, "not checkpointed", 1),
    ]
    shown = run(tmp_path, "show", "checkpoint")
    assert shown.code == 0
    for word in ("flushed", "pending", "not checkpointed", busy.query_id):
        assert word in shown.out
    document = run(tmp_path, "show", "checkpoint", "--json", "--most", "2").document
    assert ([line["epoch"] for line in document["epochs"]], document["left_out"]) == ([0, 1, 1], 2)
    assert "Left out: 2 newer epochs" in run(tmp_path, "show", "checkpoint", "--most", "2").out


def test_show_does_not_list_trimmed_epochs(busy: World, tmp_path: Path) -> None:
    busy.retention = Retention(us=0, bytes=0)
    busy.flush()
    assert listed(tmp_path) == [(3, "not checkpointed", 1)]
    gone = run(tmp_path, "show", "checkpoint", 2, "--json")
    assert (gone.code, gone.document["error"]) == (2, "OptionError")
    assert "up to epoch 2 are deleted from the log" in run(tmp_path, "show", "checkpoint").out


def test_show_lists_epochs_after_a_damaged_or_missing_manifest(busy: World, tmp_path: Path) -> None:
    """The exit code is 0: only `status --deep` reports findings by its exit code."""
    names = ((p, paths.MANIFEST.parse(p)) for p in busy.log_backend.list(paths.MANIFEST.folder))
    (path,) = (p for p, name in names if name is not None and name.epoch == 2)
    busy.log_backend.replace(path, b"{")
    lines = listed(tmp_path)
    assert (2, "damaged", None) in lines
    assert (3, "not checkpointed", 1) in lines
    assert "CorruptLog" in run(tmp_path, "show", "checkpoint").out
    former = run(tmp_path, "show", "checkpoint", 1, "--json").document["epochs"][0]
    assert (former["state"], former["problem"][:16]) == ("damaged", "A later manifest")
    busy.log_backend.delete([path])
    assert (2, "no manifest", None) in listed(tmp_path)
    gone = run(tmp_path, "show", "checkpoint", 2, "--json")
    assert (gone.code, gone.document["error"]) == (6, "MissingManifest")


def test_show_prints_rows_and_offsets_of_an_epoch(busy: World, tmp_path: Path) -> None:
    document = run(tmp_path, "show", "checkpoint", 2, "--json").document
    (attempt,) = document["epochs"]
    assert (attempt["epoch"], attempt["state"], attempt["rows"]) == (2, "pending", 3)
    assert (attempt["run_id"], attempt["segments"]) == (busy.keepers[2], 2)
    details = attempt["details"]
    assert details["offsets"] == ['{"offset":2}']
    assert [column["name"] for column in details["columns"]] == ["k", "v"]
    assert [segment["rows"] for segment in details["segments"]] == [2, 1]
    folder = paths.segment_folder(2)
    assert [segment["path"] for segment in details["segments"]] == list(
        busy.log_backend.list(folder)
    )
    assert details["sample"] == [{"k": k, "v": 2} for k in "cde"]
    for most in (0, 1):
        some = run(tmp_path, "show", "checkpoint", 2, "--rows", most, "--json").document
        assert len(some["epochs"][0]["details"]["sample"]) == most
    shown = run(tmp_path, "show", "checkpoint", 2).out
    for word in ("pending", '{"offset":2}', "Schema", "Segments", "Some rows", "timestamps from"):
        assert word in shown


def test_epoch_that_was_never_published_is_refused(busy: World, tmp_path: Path) -> None:
    never = run(tmp_path, "show", "checkpoint", 9, "--json")
    assert (never.code, never.document["error"]) == (2, "OptionError")
    assert "epochs 0 to 3" in never.document["remedy"]
    assert busy.table() == {"a": 0}


def test_show_of_a_damaged_segment_omits_only_its_rows(busy: World, tmp_path: Path) -> None:
    path = busy.log_backend.list(paths.segment_folder(2))[0]
    busy.log_backend.replace(path, busy.log_backend.read(path)[:-1])
    done = run(tmp_path, "show", "checkpoint", 2, "--json")
    (attempt,) = done.document["epochs"]
    assert (done.code, attempt["details"]["sample"], attempt["rows"]) == (0, [], 3)
    assert "CorruptLog" in attempt["problem"]


def test_control_characters_of_values_are_escaped(world: World, tmp_path: Path) -> None:
    """Markup in a value is text, and a long value is cut."""
    world.run().batch([("\x1b[2J[red]bold\n", 1), ("x" * 10_000, 2)])
    shown = run(tmp_path, "show", "checkpoint", 0).out
    assert "\x1b" not in shown
    assert r"\x1b[2J[red]bold\n" in shown
    assert "x" * 30 in shown
    assert len(shown) < 10_000
    document = run(tmp_path, "show", "checkpoint", 0, "--json").document
    sample = document["epochs"][0]["details"]["sample"]
    assert [row["k"] for row in sample] == ["\x1b[2J[red]bold\n", "x" * 10_000]
