"""`quarantine`: lists and exports refused rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from tests.cli.shell import run
from tests.protocol.engine import World


def test_refused_rows_are_listed_and_exported(world: World, tmp_path: Path) -> None:
    world.on_invalid_row = "quarantine"
    query = world.run().batches([("a", 1)])
    query.batch([("b", 2), (None, 7)], [(None, 8)])
    empty = run(tmp_path, "quarantine", "checkpoint")
    assert (empty.code, empty.out.strip()) == (0, "No rows are in quarantine.")
    world.flush()
    shown = run(tmp_path, "quarantine", "checkpoint", "--json").document
    (group,) = shown["groups"]
    assert (shown["rows"], group["epoch"], group["rows"], group["column"]) == (2, 1, 2, "k")
    assert (group["kind"], group["refused_by"]) == ("InvalidRow", "")
    text = run(tmp_path, "quarantine", "checkpoint")
    assert "2 rows are in quarantine" in text.out
    assert "Key column k is null" in text.out
    assert "wal-sink quarantine" in run(tmp_path, "status", "checkpoint").out
    status = run(tmp_path, "status", "checkpoint", "--json").document
    assert "only the log has the rows that could not be written" in status["unsafe_because"]
    lines = run(tmp_path, "quarantine", "checkpoint", "--export", "rows.jsonl", "--json")
    assert lines.document["rows"] == 2
    read = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line["row"] for line in read] == [{"k": None, "v": 7}, {"k": None, "v": 8}]
    assert run(tmp_path, "quarantine", "checkpoint", "--export", "rows.parquet").code == 0
    table = pq.read_table(tmp_path / "rows.parquet")
    assert [json.loads(row)["v"] for row in table["row"].to_pylist()] == [7, 8]
    assert table["epoch"].to_pylist() == [line["epoch"] for line in read] == [1, 1]
    again = run(tmp_path, "quarantine", "checkpoint", "--export", "rows.jsonl")
    assert (again.code, "exists" in again.err) == (2, True)
    nowhere = run(tmp_path, "quarantine", "checkpoint", "--export", "no/folder.jsonl")
    assert (nowhere.code, "no/folder.jsonl for --export cannot be" in nowhere.err) == (2, True)
    unknown = run(tmp_path, "quarantine", "checkpoint", "--export", "rows.csv")
    assert (unknown.code, ".parquet" in unknown.err) == (2, True)


def test_rows_that_the_server_refuses_are_listed(world: World, tmp_path: Path) -> None:
    """The flush continues without these rows."""
    world.on_invalid_row = "quarantine"
    world.store_target.refuses = lambda row: "CHECK (v > 0) fails" if row["v"] < 0 else ""
    world.run().batch([("a", 1), ("b", -1), ("c", -2)])
    world.flush()
    assert world.table() == {"a": 1}
    shown = run(tmp_path, "quarantine", "checkpoint", "--json").document
    (group,) = shown["groups"]
    assert (group["rows"], group["kind"], group["refused_by"]) == (2, "TargetRefused", "memory")
    assert group["reason"] == "CHECK (v > 0) fails"
    run(tmp_path, "quarantine", "checkpoint", "--export", "rows.jsonl")
    read = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line["row"] for line in read] == [{"k": "b", "v": -1}, {"k": "c", "v": -2}]


def test_quarantine_command_names_a_damaged_file(world: World, tmp_path: Path) -> None:
    world.on_invalid_row = "quarantine"
    world.run().batch([(None, 7)])
    world.flush()
    (path,) = world.log_backend.list("refused/")
    world.log_backend.replace(path, b"torn")
    stopped = run(tmp_path, "quarantine", "checkpoint", "--json")
    assert (stopped.code, stopped.document["error"]) == (6, "CorruptLog")
    assert path in stopped.document["what"]
