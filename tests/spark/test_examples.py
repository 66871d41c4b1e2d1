"""The examples, over one topic. The expected rows are computed here from the topic."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import wal_sink
from wal_sink.demo.cassandra import Node

EXAMPLES = Path(__file__).parents[2] / "examples"
ELSEWHERE = {
    *("shop", "quickstart", "kafka_orders"),
    *("folder_target", "redis_target", "sqlite_target"),
}
"""Examples that other tests run: the test of the wheel, those of deployments, and the contract suites."""
WATERMARK = timedelta(hours=12)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cassandra,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.mark.usefixtures("spark")
def test_examples_write_every_row(
    cassandra: Node,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each example ends, everything is flushed, and its table has exactly the expected rows."""
    arguments = [cassandra.host, str(cassandra.port), keyspace]
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    tables = {
        "orders": "revenue_by_hour",
        "counts": "orders_by_hour",
        "latest": "order_status",
        "changes": "customers",
        "wide_rows": "orders_by_customer",
    }
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*tables, *ELSEWHERE}
    for name, table in tables.items():
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        status = wal_sink.status(str(tmp_path / f"checkpoint-{table}"))
        assert status.flushed == status.checkpointed >= 2
    for name, value in (("HOST", arguments[0]), ("PORT", arguments[1])):
        monkeypatch.setenv(f"CASSANDRA_{name}", value)
    monkeypatch.setenv("KEYSPACE", keyspace)
    checked, flushed, status_shown = run_notebook(EXAMPLES / "notebook.ipynb")
    assert "order_id" in repr(checked)
    assert (
        "order_id: string does not fit the table's bigint without loss" in capsys.readouterr().out
    )
    assert re.fullmatch(r"every epoch up to \d+ is flushed(; waited .* rows)?", repr(flushed))
    assert f"{keyspace}.orders_by_status" in repr(status_shown)
    assert "none: everything checkpointed is flushed" in repr(status_shown)
    topic = [
        json.loads(json.loads(record)["value"])
        for path in (tmp_path / "topic").glob("*.json")
        for record in path.read_text(encoding="utf-8").splitlines()
    ]
    read = Read(cassandra, keyspace)
    assert read.revenue() == expected_revenue(topic)
    assert read.counts() == expected_counts(topic)
    assert read.latest() == expected_latest(topic)
    assert read.orders() == expected_orders(topic)
    assert read.customers() == expected_customers(tmp_path / "customers")
    assert read.statuses() == {(event["status"], event["order_id"]) for event in topic}


def run_notebook(path: Path) -> list[object]:
    """Run the cells of a notebook; return the values that they show."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    shown = []
    for cell in cells:
        assert not cell.get("outputs"), "the notebook is committed with output"
        if cell["cell_type"] != "code":
            continue
        *body, last = ast.parse("".join(cell["source"])).body
        if not isinstance(last, ast.Expr):
            body.append(last)
        exec(compile(ast.Module(body, []), path.name, "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), names))
    return [value for value in shown if value is not None]


Customers = dict[int, tuple[str, str | None, int, str]]


class Read:
    """Reads the tables, as plain values."""

    def __init__(self, cassandra: Node, keyspace: str) -> None:
        self._cassandra, self._keyspace = cassandra, keyspace

    def _rows(self, table: str) -> list[Any]:
        return list(self._cassandra.execute(f"SELECT * FROM {self._keyspace}.{table}"))

    def revenue(self) -> dict[tuple[str, datetime], tuple[int, Decimal]]:
        return {(r.sku, _utc(r.hour)): (r.orders, r.revenue) for r in self._rows("revenue_by_hour")}

    def counts(self) -> dict[tuple[datetime, str], int]:
        return {(_utc(r.hour), r.status): r.orders for r in self._rows("orders_by_hour")}

    def latest(self) -> dict[int, tuple[int, str, datetime]]:
        rows = self._rows("order_status")
        return {r.order_id: (r.version, r.status, _utc(r.changed_at)) for r in rows}

    def statuses(self) -> set[tuple[str, int]]:
        return {(r.status, r.order_id) for r in self._rows("orders_by_status")}

    def customers(self) -> Customers:
        return {r.customer_id: (r.name, r.city, r.points, r.notes) for r in self._rows("customers")}

    def orders(self) -> dict[tuple[int, datetime, int], tuple[object, ...]]:
        return {
            (r.customer_id, _utc(r.placed_at), r.order_id): (
                (r.ship_to.street, r.ship_to.city, r.ship_to.zip),
                [(item.sku, item.quantity, item.price) for item in r.items],
                set(r.tags),
                dict(r.notes or {}),
            )
            for r in self._rows("orders_by_customer")
        }


def expected_revenue(topic: list[Any]) -> dict[tuple[str, datetime], tuple[int, Decimal]]:
    """Sum each order once, in the windows that end before the watermark."""
    placed = {event["order_id"]: event for event in topic if event["status"] == "placed"}
    watermark = max(_at(event) for event in placed.values()) - WATERMARK
    orders: Counter[tuple[str, datetime]] = Counter()
    revenue: defaultdict[tuple[str, datetime], Decimal] = defaultdict(Decimal)
    for event in placed.values():
        hour = _at(event).replace(minute=0)
        if hour + timedelta(hours=1) <= watermark:
            for item in event["items"]:
                orders[item["sku"], hour] += 1
                revenue[item["sku"], hour] += item["quantity"] * Decimal(item["price"])
    assert len(orders) > 50
    return {key: (orders[key], revenue[key]) for key in orders}


def expected_counts(topic: list[Any]) -> dict[tuple[datetime, str], int]:
    """Count each order once in an hour. No order is later than the watermark allows."""
    orders = defaultdict(set)
    for event in topic:
        orders[_at(event).replace(minute=0), event["status"]].add(event["order_id"])
    assert len(orders) > 100
    return {key: len(of_hour) for key, of_hour in orders.items()}


def expected_latest(topic: list[Any]) -> dict[int, tuple[int, str, datetime]]:
    """Take the highest version of each order."""
    highest = {event["order_id"]: event for event in sorted(topic, key=lambda e: int(e["version"]))}
    return {key: (e["version"], e["status"], _at(e)) for key, e in highest.items()}


def expected_orders(topic: list[Any]) -> dict[tuple[int, datetime, int], tuple[object, ...]]:
    """Take each order as it was placed."""
    return {
        (event["customer_id"], _at(event), event["order_id"]): (
            tuple(event["ship_to"].values()),
            [(item["sku"], item["quantity"], Decimal(item["price"])) for item in event["items"]],
            set(event["tags"]),
            event["notes"],
        )
        for event in topic
        if event["status"] == "placed"
    }


def expected_customers(topic: Path) -> Customers:
    """Apply the records in their order."""
    customers: Customers = {}
    deletes = kept = 0
    for path in sorted(topic.glob("*.json")):
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            key, change = (
                json.loads(record["key"])["customer_id"],
                json.loads(record["value"] or "null"),
            )
            if change is None:
                assert key not in customers, "a tombstone follows its delete"
            elif change["op"] == "d":
                del customers[key]
                deletes += 1
            else:
                after = change["after"]
                if after["notes"] == "__debezium_unavailable_value":
                    after["notes"] = customers[key][3]
                    kept += 1
                customers[key] = tuple(after.values())
    assert deletes > 50
    assert kept > 50
    assert len(customers) > 5
    return customers


def _at(event: Any) -> datetime:
    return datetime.fromisoformat(event["changed_at"])


def _utc(read: datetime) -> datetime:
    """Add the zone, which the driver leaves out."""
    return read.replace(tzinfo=UTC)
