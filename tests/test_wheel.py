"""What a user gets: the wheel, installed into an empty venv, runs the quick start of the README."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cassandra.query import SimpleStatement

from tests.quickstart import README, preparation, quick_start
from wal_sink.testing.cassandra.embedded import EmbeddedCassandra

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(900)]

DIST_INFO = re.compile(r"wal_sink-[^/]+\.dist-info")
FLIGHTS = 336_776
LAST_EPOCH = 23
"""The quick start reads 24 files, one a micro-batch."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree; in this venv if hatchling is there, which saves a download."""
    folder = tmp_path_factory.mktemp("dist")
    here = importlib.util.find_spec("hatchling") is not None
    isolation = ["--no-isolation"] if here else []
    run(sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", folder, README.parent)
    (built,) = folder.iterdir()
    return built


def test_the_wheel_holds_two_packages_and_nothing_else(wheel: Path) -> None:
    """Its top level is `wal_sink`, `state_backends` and the metadata; both packages are typed."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert top_level(names) == {"wal_sink", "state_backends", "*.dist-info"}
    assert {"wal_sink/py.typed", "state_backends/py.typed"} <= set(names)


@pytest.mark.slow_first
def test_the_quick_start_runs_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """A new user's first minutes: everything is flushed, and the table holds every flight."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin" / "python"
    install, export = preparation()
    assert install == "pip install 'wal_sink[demo]'"
    # What is imported is compiled then; the rest of Spark, pandas and matplotlib need not be.
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}[demo]")
    assert top_level(installed(venv)) == {"wal_sink", "state_backends", "*.dist-info"}

    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "quickstart.py").write_text(quick_start(), encoding="utf-8")
    shell = f". {venv}/bin/activate && {export.partition('#')[0]} && python quickstart.py"
    printed = run("bash", "-c", shell, folder=folder)
    assert re.search(rf"^flushed +{LAST_EPOCH},", printed, re.MULTILINE)
    assert "none: everything checkpointed is flushed" in printed

    node = EmbeddedCassandra(folder / "cassandra")  # goes on from the quick start's data
    try:
        assert rows(node.start()) == FLIGHTS
    finally:
        node.close()
    shutil.rmtree(venv)  # pytest keeps the folders of three runs, and this one is large


def test_the_quick_start_is_short() -> None:
    """What the README promises: ten lines more than a user has anyway."""
    assert len([line for line in quick_start().splitlines() if line]) <= 15
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def rows(node: EmbeddedCassandra) -> int:
    """Count the flights page by page; one count(*) over the table would run into a timeout."""
    select = SimpleStatement(
        "SELECT origin, day, scheduled, carrier, flight FROM travel.flights_by_origin_day",
        fetch_size=5_000,
    )
    return sum(1 for _ in node.session().execute(select))


def installed(venv: Path) -> list[str]:
    """Return the files that the distribution brought, relative to site-packages."""
    (record,) = venv.glob("lib/python*/site-packages/wal_sink-*.dist-info/RECORD")
    with record.open(encoding="utf-8", newline="") as lines:
        return [path for path, *_ in csv.reader(lines)]


def top_level(paths: list[str]) -> set[str]:
    """Return the first part of each path but the command's, the metadata's folder without the version."""
    ours = [path for path in paths if not path.endswith("/bin/wal-sink")]
    return {DIST_INFO.sub("*.dist-info", path.split("/")[0]) for path in ours}


def run(*command: str | Path, folder: Path | None = None) -> str:
    """Run a program as from a fresh shell; return what it printed, or fail with all that it said."""
    ours = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
