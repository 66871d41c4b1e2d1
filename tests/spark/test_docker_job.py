"""The example job of docker/, and the compose files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
JOB = ROOT / "docker" / "job.py"


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
            [sys.executable, JOB],
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


def test_compose_file_names_existing_files_and_images() -> None:
    """The job gets time to flush when it is stopped."""
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    services = compose["services"]
    assert services.keys() == {"cassandra", "job", "prometheus", "grafana"}
    assert services["cassandra"]["image"] == IMAGE == "cassandra:5.0"
    build = services["job"]["build"]
    context = (ROOT / "docker" / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()
    assert services["job"]["stop_grace_period"] == "90s"
    mounted = {v.split(":")[0] for service in services.values() for v in service["volumes"]}
    named = {source for source in mounted if not source.startswith("./")}
    assert named == compose["volumes"].keys()
    assert [source for source in mounted - named if not (ROOT / "docker" / source).is_dir()] == []


def test_prometheus_scrapes_the_job_and_grafana_reads_prometheus() -> None:
    """The files agree on hosts, ports and folders."""
    docker = ROOT / "docker"
    services = yaml.safe_load((docker / "compose.yaml").read_text())["services"]
    port = services["job"]["environment"]["METRICS_PORT"]
    assert services["job"]["environment"]["METRICS_HOST"] == "0.0.0.0", "another container scrapes"
    assert "ports" not in services["job"], "the metrics have no login"
    asked = yaml.safe_load((docker / "prometheus" / "prometheus.yml").read_text())
    assert asked["scrape_configs"][0]["static_configs"] == [{"targets": [f"job:{port}"]}]
    assert (docker / "prometheus" / asked["rule_files"][0]).is_file()
    assert "./prometheus:/etc/prometheus:ro" in services["prometheus"]["volumes"]
    provisioning = docker / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    (source,) = sources["datasources"]
    assert source["url"] == "http://prometheus:9090"
    providers = yaml.safe_load((provisioning / "dashboards" / "wal_sink.yaml").read_text())
    shown = providers["providers"][0]["options"]["path"]
    assert f"./grafana/dashboards:{shown}:ro" in services["grafana"]["volumes"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (docker / "grafana" / "dashboards" / home.removeprefix(f"{shown}/")).is_file()
    published = [p for service in services.values() for p in service.get("ports", [])]
    assert published
    assert all(p.startswith("127.0.0.1:") for p in published)


def test_compose_file_with_kafka_runs_the_example() -> None:
    """kafka.yaml extends services of compose.yaml, and sets the variables that the example reads."""
    docker = ROOT / "docker"
    services = yaml.safe_load((docker / "kafka.yaml").read_text())["services"]
    whole = yaml.safe_load((docker / "compose.yaml").read_text())["services"]
    extended = [s["extends"]["service"] for s in services.values() if "extends" in s]
    assert sorted(extended) == ["cassandra", "job", "job"]
    assert whole.keys() >= set(extended)
    example = (ROOT / "examples" / "kafka_orders.py").read_text()
    assert "examples/kafka_orders.py" in (docker / "Dockerfile").read_text()
    for name in ("producer", "job"):
        assert "/opt/job/kafka_orders.py" in services[name]["command"]
        variables = services[name]["environment"].keys() - {"PYSPARK_SUBMIT_ARGS"}
        assert variables
        assert [variable for variable in variables if f'"{variable}"' not in example] == []
    submit = services["job"]["environment"]["PYSPARK_SUBMIT_ARGS"]
    assert ":".join(PACKAGE) in submit
    assert ":".join(PACKAGE) in example
