"""A Prometheus for a test, with the shipped alert rules and shorter durations."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from wal_sink.demo.server import choose_port

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docker" / "prometheus" / "rules.yml"

FASTER = 20
"""The factor by which durations are shorter: a minute is three seconds."""


@pytest.fixture(scope="session")
def promtool() -> str:
    """Return the program that checks rules, or skip the test; `.ci/run` refuses skipped ones."""
    program = shutil.which("promtool")
    if program is None or shutil.which("prometheus") is None:
        pytest.skip("no Prometheus here: apt-get install prometheus")
    return program


def faster(rules: str) -> str:
    """Return rules with every duration and every threshold of seconds divided by `FASTER`.

    A threshold below 10 is not in seconds, and stays the same.
    """

    def milliseconds(match: re.Match[str]) -> str:
        number, unit = int(match[1]), {"s": 1, "m": 60, "h": 3_600}[match[2]]
        return f"{number * unit * 1_000 // FASTER}ms"

    def seconds(match: re.Match[str]) -> str:
        return f"> {int(match[1]) / FASTER:g}"

    made = yaml.safe_load(rules)
    for group in made["groups"]:
        for rule in group["rules"]:
            rule["for"] = re.sub(r"^(\d+)([smh])$", milliseconds, rule["for"])
            inner = re.sub(r"(?<=\[)(\d+)([smh])(?=\])", milliseconds, rule["expr"])
            rule["expr"] = re.sub(r"> (\d{2,})\b", seconds, inner)
    return str(yaml.safe_dump(made))


class Prometheus:
    """A server that scrapes one port and evaluates the rules twice a second."""

    def __init__(self, folder: Path, scraped: int) -> None:
        folder.mkdir()
        self._folder = folder
        self.port = choose_port("127.0.0.1")
        (folder / "rules.yml").write_text(faster(RULES.read_text()))
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": "wal_sink", "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    @contextlib.contextmanager
    def running(self) -> Iterator[Prometheus]:
        """Run the server within the block."""
        with (self._folder / "output").open("wb") as output:
            process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    "--log.level=warn",
                ],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        try:
            self.until(self._answers, 60)
            yield self
        finally:
            process.terminate()
            process.wait(30)

    def get(self, path: str) -> Any:
        """Return the data of an API request."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def rules(self) -> dict[str, dict[str, Any]]:
        """Return the state of each rule, by the name of its alert."""
        groups = self.get("/api/v1/rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def targets(self) -> list[str]:
        """Return the URLs that Prometheus has scraped with success."""
        targets = self.get("/api/v1/targets?state=active")["activeTargets"]
        return [target["scrapeUrl"] for target in targets if target["health"] == "up"]

    def firing(self) -> set[str]:
        """Return the names of the firing alerts."""
        alerts = self.get("/api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition; a failure shows the server's output."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self._folder / "output").read_text()
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return bool(self.get("/api/v1/status/buildinfo"))
        except OSError:
            return False
