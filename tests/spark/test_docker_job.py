"""The example job of docker/, and the compose files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cassandra import InvalidRequest
from cassandra.cluster import NoHostAvailable

import wal_sink
from tests.spark.kafka_jars import PACKAGE
from tests.support.servers.cassandra_container import IMAGE
from tests.support.waiting import until
from wal_sink.demo.cassandra import Node

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"


@pytest.mark.test_all
@pytest.mark.spark
@pytest.mark.cassandra
def test_job_flushes_what_is_checkpointed_on_sigterm(
    cassandra: Node, keyspace: str, tmp_path: Path
) -> None:
    """The job is killed, started again and stopped. Every order is in the table once."""
    with started(cassandra, keyspace, tmp_path):
        until(lambda: count(cassandra, keyspace) > 0, 120)
    count_before = count(cassandra, keyspace)
    with started(cassandra, keyspace, tmp_path) as stopped:
        until(lambda: count(cassandra, keyspace) > count_before, 120)
        stopped.terminate()
        stopped.wait(120)
    printed = (tmp_path / "output").read_text()
    assert stopped.returncode == 0, printed
    status = wal_sink.status(str(tmp_path / "checkpoint"))
    assert status.checkpointed == status.flushed > 0
    # Spark's JVM may print another line, about the batch that was cut off.
    last = f"in Cassandra: epoch {status.flushed}."
    assert any(line.endswith(last) for line in printed.splitlines()), printed
    numbers = sorted(
        row.number for row in cassandra.execute(f"SELECT number FROM {keyspace}.orders")
    )
    assert numbers == list(range(len(numbers)))


@contextlib.contextmanager
def started(cassandra: Node, keyspace: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job within the block, in a process group of its own; SIGKILL ends it."""
    settings = {
        "CASSANDRA_HOST": cassandra.host,
        "CASSANDRA_PORT": str(cassandra.port),
        "KEYSPACE": keyspace,
        "CHECKPOINT": str(folder / "checkpoint"),
    }
    with (folder / "output").open("ab") as output:
        job = subprocess.Popen(
            [sys.executable, DOCKER / "job.py"],
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
            cwd=folder,
        )
    with job:
        try:
            yield job
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


def count(cassandra: Node, keyspace: str) -> int:
    """Count the orders; 0 before the table is created."""
    try:
        return int(cassandra.execute(f"SELECT count(*) FROM {keyspace}.orders")[0][0])
    except InvalidRequest:
        return 0
    except NoHostAvailable as error:
        if "Unknown CF" not in str(error):
            raise
        return 0


def services(file: str = "compose.yaml") -> dict[str, Any]:
    """Return the services of a compose file."""
    compose: dict[str, Any] = yaml.safe_load((DOCKER / file).read_text())
    return compose["services"]  # type: ignore[no-any-return]


def test_compose_file_names_existing_files_and_images() -> None:
    """The job gets time to flush when it is stopped. Prometheus scrapes it, and other hosts reach nothing."""
    compose = services()
    job = compose["job"]
    assert compose["cassandra"]["image"] == IMAGE
    assert (DOCKER / job["build"]["context"] / job["build"]["dockerfile"]).is_file()
    assert job["stop_grace_period"] == "90s"
    mounted = [v.split(":")[0] for service in compose.values() for v in service["volumes"]]
    assert all((DOCKER / place).is_dir() for place in mounted if place.startswith("./"))
    prometheus = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    scraped = [{"targets": [f"job:{job['environment']['METRICS_PORT']}"]}]
    assert prometheus["scrape_configs"][0]["static_configs"] == scraped
    assert (DOCKER / "prometheus" / prometheus["rule_files"][0]).is_file()
    assert "ports" not in job, "the metrics have no login"
    published = [port for service in compose.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_grafana_reads_prometheus_and_shows_an_existing_dashboard() -> None:
    grafana, provisioning = services()["grafana"], DOCKER / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    assert [source["url"] for source in sources["datasources"]] == ["http://prometheus:9090"]
    providers = yaml.safe_load((provisioning / "dashboards" / "wal_sink.yaml").read_text())
    shown = providers["providers"][0]["options"]["path"]
    assert f"./grafana/dashboards:{shown}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DOCKER / "grafana" / "dashboards" / home.removeprefix(f"{shown}/")).is_file()


def test_compose_file_with_kafka_runs_the_example() -> None:
    """kafka.yaml extends services of compose.yaml, and sets the variables that the example reads."""
    kafka = services("kafka.yaml")
    extended = {s["extends"]["service"] for s in kafka.values() if "extends" in s}
    assert extended == {"cassandra", "job"} <= services().keys()
    example = (ROOT / "examples" / "kafka_orders.py").read_text()
    assert "examples/kafka_orders.py" in (DOCKER / "Dockerfile").read_text()
    for name in ("producer", "job"):
        assert "/opt/job/kafka_orders.py" in kafka[name]["command"]
        variables = kafka[name]["environment"].keys() - {"PYSPARK_SUBMIT_ARGS"}
        assert variables
        assert [variable for variable in variables if f'"{variable}"' not in example] == []
    for text in (kafka["job"]["environment"]["PYSPARK_SUBMIT_ARGS"], example):
        assert ":".join(PACKAGE) in text
