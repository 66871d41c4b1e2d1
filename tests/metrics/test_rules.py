"""The shipped alert rules and dashboard: they name the exposed series, and Prometheus accepts them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from docs.tooling.reference import metrics
from tests.metrics.server import ROOT, RULES
from tests.metrics.watched import Watched, new_world
from tests.support.programs import ran

DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "wal_sink.json"
UNIT_TESTS = Path(__file__).with_name("rules_test.yml")

TO_ALERT_ON = {
    "wal_sink_oldest_pending_seconds",
    "wal_sink_flush_stopped",
    "wal_sink_pending_epochs",
    "wal_sink_flushers",
    "wal_sink_flush_errors_total",
    "wal_sink_request_retries_total",
    "wal_sink_commit_to_visible_seconds_bucket",
    "wal_sink_pending_read_timestamp_seconds",
}


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Return the names of the series of a query that has flushed something."""
    world = new_world()
    world.run().batch([("a", 1)])
    watched = Watched(world)
    watched.flush()
    text = generate_latest(watched.metrics.registry).decode()
    world.forget()
    samples = [s.name for family in text_string_to_metric_families(text) for s in family.samples]
    return {name for name in samples if not name.endswith("_created")}  # added by the library


def base(name: str) -> str:
    """Return the metric that a series belongs to."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def mentioned(expression: str) -> set[str]:
    """Return the names of metrics in a PromQL expression."""
    return set(re.findall(r"wal_sink_\w+", expression))


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions(panel_or_board: Any) -> list[str]:
    """Return every query of the dashboard, or of a part of it."""
    if isinstance(panel_or_board, list):
        return [expression for part in panel_or_board for expression in expressions(part)]
    if not isinstance(panel_or_board, dict):
        return []
    here = [panel_or_board[key] for key in ("expr", "definition") if key in panel_or_board]
    return here + [
        expression for part in panel_or_board.values() for expression in expressions(part)
    ]


def test_alert_rules_use_only_exposed_metrics(names: set[str]) -> None:
    used = set().union(*(mentioned(rule["expr"]) for rule in rules()))
    assert used - names == set()
    assert TO_ALERT_ON - used == set()


def test_dashboard_shows_every_exposed_metric(names: set[str]) -> None:
    used = set().union(*map(mentioned, expressions(json.loads(DASHBOARD.read_text()))))
    assert used - names == set()
    assert {base(name) for name in names} - {base(name) for name in used} == set()


def test_reference_describes_every_metric(names: set[str]) -> None:
    text = metrics()
    table = {name for line in text.splitlines() if line[:2] == "| " for name in mentioned(line)}
    assert table == {base(name) for name in names}


def test_alert_has_a_severity_and_a_runbook() -> None:
    """The headings that runbooks name exist."""
    assert len(rules()) >= 8
    for rule in rules():
        assert rule["for"], rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        file, _, rest = rule["annotations"]["runbook"].partition(".md")
        text = (ROOT / f"{file}.md").read_text()
        if rest.startswith(", "):
            heading = rest.removeprefix(", ").partition(":")[0]
            assert f"# {heading}\n" in text, rule["alert"]


@pytest.mark.prometheus
def test_every_alert_passes_its_promtool_cases(promtool: str, tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(UNIT_TESTS, tmp_path)
    cases = UNIT_TESTS.read_text()
    assert [rule["alert"] for rule in rules() if f"{rule['alert']}\n" not in cases] == []
    done = ran([promtool, "test", "rules", UNIT_TESTS.name], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_prometheus_configuration_is_valid_and_loads_all_rules(promtool: str) -> None:
    config = RULES.with_name("prometheus.yml")
    done = ran([promtool, "check", "config", str(config)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(rules())} rules found" in done.stdout


@pytest.mark.prometheus
def test_queries_of_the_dashboard_are_valid(promtool: str, tmp_path: Path) -> None:
    """They are checked as rules, with values in place of Grafana's variables."""
    queries = [
        expression.replace("$__rate_interval", "1m").replace("$query_id", ".*")
        for expression in expressions(json.loads(DASHBOARD.read_text()))
        if not expression.startswith("label_values(")
    ]
    assert len(queries) > 15
    recorded = [{"record": f"q{i}", "expr": query} for i, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    done = ran([promtool, "check", "rules", str(file)])
    assert done.returncode == 0, done.stdout + done.stderr
