"""The recipes in docs/deploy.md, by which wal_sink reaches every Python process of an application."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.deploy.cluster import Cluster
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.support import wheel
from tests.support.deploy_table import Counted, Row
from tests.support.programs import ran
from wal_sink.demo.local_spark import HOME

pytestmark = [pytest.mark.test_all, pytest.mark.spark, pytest.mark.timeout(1_200)]

ROOT = Path(__file__).parents[2]
FILES = 2
JOB = """
from pathlib import Path
from pyspark.sql import SparkSession
import wal_sink

here = Path(__file__).parent
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.load(f"{here}/source", "parquet", "id bigint", maxFilesPerTrigger=1)
with wal_sink.register(spark):
    query = (
        rows.selectExpr("id", "uuid() AS key").writeStream.format("wal_sink")
        .option("checkpointLocation", f"{here}/checkpoint")
        .option("target", "sqlite_target:SqliteTarget")
        .option("sqlite.path", f"{here}/shop.db").option("table", "orders")
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
"""
SETTINGS = """
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.ui.enabled false
spark.log.level WARN
spark.executor.cores 1
spark.executor.memory 512m
"""


def recipe(name: str) -> str:
    """Return the block of docs/deploy.md after the comment with this name."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"<!-- recipe: {name} -->\n```bash\n(.*?)```", page, re.DOTALL)
    return str(block)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, built: Path) -> Path:
    """Return the Python of an environment with the dependencies of wal_sink, without wal_sink."""
    folder = tmp_path_factory.mktemp("hosts") / "environment"
    make_environment(folder, built)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster whose workers have no package installed."""
    folder = tmp_path_factory.mktemp("cluster") / "it"
    with Cluster(folder, workers=2, cores=1, environment={}) as cluster:
        yield cluster


@pytest.fixture
def shop(tmp_path: Path, built: Path) -> Path:
    """Return a folder with the job, its source, its empty table and the wheel."""
    write_source(tmp_path / "source", FILES)
    (tmp_path / "job.py").write_text(JOB)
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER, key TEXT)")
    shutil.copy(built, tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(SETTINGS)
    return tmp_path


def make_environment(folder: Path, built: Path) -> None:
    """Make an environment with the dependencies of a wheel, linked from this environment, and the target."""
    wheel.run(sys.executable, "-m", "venv", folder)
    (site,) = folder.glob("lib/python*/site-packages")

    def link(present: Path, here: Path) -> None:
        (wheel.symbolic if present.name == "pyspark" else wheel.hard)(present, here)

    wheel.link_requirements(site, built, link=link)
    shutil.copy(ROOT / "examples" / "sqlite_target.py", site)


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of a shell in a folder, in the environment of a new user with Spark on PATH."""
    clean = wheel.fresh_environment()
    return ran(
        ["bash", "-euc", script],
        cwd=folder,
        env={
            **clean,
            "PATH": f"{Path(sys.executable).parent}:{HOME / 'bin'}:{clean['PATH']}",
            "SPARK_HOME": str(HOME),
            "SPARK_CONF_DIR": str(folder / "conf"),
            "PIP_NO_INDEX": "1",
            **environment,
        },
        timeout=900,
    )


def rows_of(shop: Path) -> int:
    """Count the rows. Each id and each key must be unique."""
    with sqlite3.connect(shop / "shop.db") as database:
        number, ids, keys = database.execute(
            "SELECT count(*), count(DISTINCT id), count(DISTINCT key) FROM orders"
        ).fetchone()
    assert number == ids == keys
    return int(number)


def add(counted: Counted, what: str, shop: Path) -> None:
    """Add a row to the table of `make test-all`."""
    counted(Row(what, pyspark.__version__, "none", FILES * ROWS_PER_FILE, rows_of(shop)))


def test_recipe_for_one_machine_works_without_shipping(
    shop: Path, built: Path, counted: Counted
) -> None:
    make_environment(shop / "environment", built)
    done = run(recipe("one machine"), shop)
    assert done.returncode == 0, done.stdout + done.stderr
    add(counted, "one machine, an environment", shop)


def test_executors_use_the_shipped_archive(
    shop: Path, built: Path, cluster: Cluster, counted: Counted
) -> None:
    """If the archive is in another folder, the start is refused with the command that works."""
    make_environment(shop / "environment", built)
    done = run(recipe("an archive"), shop, SPARK_MASTER=cluster.url)
    assert done.returncode == 0, done.stdout + done.stderr
    add(counted, "standalone, client mode, --archives", shop)

    elsewhere = shop / "else where"
    elsewhere.mkdir()
    *_, submit = recipe("an archive").strip().splitlines()
    submit = submit.replace("environment.tar.gz#", "../environment.tar.gz#").replace(
        "job", "../job"
    )
    pythons = {
        "PYSPARK_DRIVER_PYTHON": str(shop / "environment" / "bin" / "python"),
        "PYSPARK_PYTHON": "./environment/bin/python",
        "SPARK_CONF_DIR": str(shop / "conf"),
    }
    refused = run(submit, elsewhere, SPARK_MASTER=cluster.url, **pythons)
    assert refused.returncode != 0
    printed = refused.stdout + refused.stderr  # Spark prints the driver's error to either
    assert "Spark unpacks --archives on executors only" in printed, printed


def test_executors_use_the_shipped_wheel(
    shop: Path, installed: Path, cluster: Cluster, counted: Counted
) -> None:
    """The hosts have the dependencies, and pyspark ships the wheel."""
    pythons = {"PYSPARK_DRIVER_PYTHON": str(installed), "PYSPARK_PYTHON": str(installed)}
    done = run(recipe("a wheel"), shop, SPARK_MASTER=cluster.url, **pythons)
    assert done.returncode == 0, done.stdout + done.stderr
    add(counted, "standalone, client mode, --py-files", shop)


def test_spark_refuses_cluster_mode_for_python(shop: Path, cluster: Cluster) -> None:
    """If this fails, docs/deploy.md needs a recipe for cluster mode."""
    submit = 'spark-submit --master "$SPARK_MASTER" --deploy-mode cluster --supervise job.py'
    done = run(submit, shop, SPARK_MASTER=cluster.url)
    assert done.returncode != 0
    assert "not supported for python applications on standalone clusters" in (
        done.stdout + done.stderr
    )
