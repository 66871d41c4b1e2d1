"""Spark's Python workers: which pyspark they import, and which objects their garbage collector skips."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.support.programs import ran
from wal_sink.spark.api import WORKER_PATH
from wal_sink.spark.internals import python_worker

INSTALLED = Path(pyspark.__file__).parent
ARCHIVE = INSTALLED / "python" / "lib" / "pyspark.zip"
PY4J = next(ARCHIVE.parent.glob("py4j-*.zip"))


def imported(*path: Path) -> Path:
    """Return the file of pyspark.daemon that a process imports, with entries before its path."""
    program = "import sys, pyspark.daemon; print(pyspark.daemon.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return Path(done.stdout.splitlines()[-1])


def test_worker_imports_the_pyspark_that_is_compiled() -> None:
    """Without the folder of `sitecustomize`, a worker imports Spark's archive, which is not compiled."""
    assert imported(ARCHIVE, PY4J).is_relative_to(ARCHIVE)
    assert imported(ARCHIVE, PY4J, WORKER_PATH).samefile(INSTALLED / "daemon.py")


def test_worker_imports_the_archive_of_another_spark(tmp_path: Path) -> None:
    """The pyspark of that archive may have another version than the installed one."""
    other = tmp_path / "python" / "lib" / "pyspark.zip"
    other.parent.mkdir(parents=True)
    other.write_bytes(ARCHIVE.read_bytes())
    assert imported(other, PY4J, WORKER_PATH).is_relative_to(other)


@pytest.mark.parametrize("text", ["print('hidden')", "raise ImportError('of it')"])
def test_sitecustomize_that_ours_hides_is_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [WORKER_PATH, tmp_path]))}
    program = "import sys, sitecustomize; print(sitecustomize.__file__)"
    done = ran([sys.executable, "-c", program], env=environment)
    alone = ran([sys.executable, "-c", program], env={**environment, "PYTHONPATH": str(tmp_path)})
    assert done.stdout == alone.stdout
    assert (done.returncode, "of it" in done.stderr) == (alone.returncode, "of it" in alone.stderr)


class Cycle:
    """An object that refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Begin without frozen objects, and freeze this process again at the end."""
    python_worker.freeze_objects.cache_clear()
    gc.unfreeze()
    yield
    gc.freeze()


def test_objects_made_after_the_first_freeze_are_collected() -> None:
    """The first freeze frees earlier garbage. A second call freezes nothing."""
    reference = weakref.ref(Cycle())
    python_worker.freeze_objects()
    assert reference() is None
    assert gc.get_freeze_count() > 10_000
    later = weakref.ref(Cycle())
    python_worker.freeze_objects()
    gc.collect()
    assert later() is None
