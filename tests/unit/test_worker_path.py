"""What Python runs first in a Python worker of a registered session: which pyspark is imported then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from wal_sink.spark.api import WORKER_PATH

INSTALLED = Path(pyspark.__file__).parent
ARCHIVE = INSTALLED / "python" / "lib" / "pyspark.zip"
PY4J = next(ARCHIVE.parent.glob("py4j-*.zip"))


def imported(*path: Path) -> Path:
    """Return where a process finds pyspark.daemon, with entries on its path as Spark sets them."""
    program = "import sys, pyspark.daemon; print(pyspark.daemon.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return Path(done.stdout.splitlines()[-1])


def test_a_worker_imports_the_pyspark_that_is_compiled() -> None:
    """Without the folder, Spark's archive comes first, of which Python keeps no byte code."""
    assert imported(ARCHIVE, PY4J).is_relative_to(ARCHIVE)
    assert imported(ARCHIVE, PY4J, WORKER_PATH).samefile(INSTALLED / "daemon.py")


def test_the_archive_of_another_spark_stays(tmp_path: Path) -> None:
    """Its pyspark may be of another version than the one that is installed."""
    other = tmp_path / "python" / "lib" / "pyspark.zip"
    other.parent.mkdir(parents=True)
    other.write_bytes(ARCHIVE.read_bytes())
    assert imported(other, PY4J, WORKER_PATH).is_relative_to(other)


@pytest.mark.parametrize("text", ["print('hidden')", "raise ImportError('of it')"])
def test_a_module_of_that_name_that_it_hides_is_run(tmp_path: Path, text: str) -> None:
    """As Python would have run it."""
    (tmp_path / "sitecustomize.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [WORKER_PATH, tmp_path]))}
    program = "import sys, sitecustomize; print(sitecustomize.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    alone = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == alone.stdout
    assert (done.returncode, "of it" in done.stderr) == (alone.returncode, "of it" in alone.stderr)
