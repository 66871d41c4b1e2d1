"""What a user gets: the wheel, installed into an empty venv, runs the quick start of the README."""

from __future__ import annotations

import csv
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.quickstart import README, preparation, quick_start
from tests.wheel import build, fresh_environment, link_requirements, run

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(900)]

DIST_INFO = re.compile(r"wal_sink-[^/]+\.dist-info")
FLIGHTS = 336_776
LAST_EPOCH = 5
"""The quick start reads 6 files, one a micro-batch."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    return build(tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_two_packages_and_nothing_else(wheel: Path) -> None:
    """Its top level is `wal_sink`, `state_backends` and the metadata; both packages are typed."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert top_level(names) == {"wal_sink", "state_backends", "*.dist-info"}
    assert {"wal_sink/py.typed", "state_backends/py.typed"} <= set(names)


@pytest.mark.slow_first
def test_the_quick_start_runs_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """A new user's first minutes, pasted into a shell and into Python's prompt: all rows are there.

    What the wheel asks for is linked from this environment, not downloaded: nothing else is there.
    """
    folder = tmp_path / "empty"
    folder.mkdir()
    make, install, python = preparation()
    assert install == "pip install '.[demo]'"
    run("bash", "-c", make, folder=folder)
    (site,) = folder.glob(".venv/lib/python*/site-packages")
    link_requirements(site, wheel, "demo")
    activate = f". {folder}/.venv/bin/activate"
    run(
        "bash", "-c", f"{activate} && pip install --quiet --no-deps --no-compile --no-index {wheel}"
    )
    assert top_level(installed(site)) == {"wal_sink", "state_backends", "*.dist-info"}

    shell = f"{activate} && {python} -i"
    printed, said = prompt(shell, quick_start() + COUNT, folder)
    assert "Traceback" not in said, said
    assert "SyntaxError" not in said, said
    for warning in ("Spark starts its Python workers", "FutureWarning"):
        assert warning not in said
    assert "starts\n  guarantee   exactly-once" in said
    assert len(re.findall(r"^(>>> )?Row\(scheduled=.*flight=\d+\)$", printed, re.MULTILINE)) == 5
    assert re.search(rf"^flushed +{LAST_EPOCH},", printed, re.MULTILINE)
    assert re.search(r"^target +cassandra, travel.flights_by_origin_day$", printed, re.MULTILINE)
    assert "none: everything checkpointed is flushed" in printed
    assert f"{FLIGHTS} flights" in printed
    compile(quick_start(), "quickstart.py", "exec")


def test_the_quick_start_is_short() -> None:
    """What the README promises: ten lines more than a user has anyway, and what they bring."""
    assert len([line for line in quick_start().splitlines() if line]) <= 22
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


COUNT = """
from cassandra.query import SimpleStatement
pages = SimpleStatement("SELECT flight FROM travel.flights_by_origin_day", fetch_size=20_000)
print(sum(1 for _ in cassandra.session().execute(pages)), "flights")
"""
"""Counts page by page; one count(*) over the table would run into a timeout."""


def prompt(shell: str, typed: str, folder: Path) -> tuple[str, str]:
    """Type a program into Python's prompt, line by line; return its standard output and error."""
    done = subprocess.run(
        ["bash", "-c", shell],
        input=typed,
        cwd=folder,
        env=fresh_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def installed(site: Path) -> list[str]:
    """Return the files that the distribution brought, relative to site-packages."""
    (record,) = site.glob("wal_sink-*.dist-info/RECORD")
    with record.open(encoding="utf-8", newline="") as lines:
        return [path for path, *_ in csv.reader(lines)]


def top_level(paths: list[str]) -> set[str]:
    """Return the first part of each path but the command's, the metadata's folder without the version."""
    ours = [path for path in paths if not path.endswith("/bin/wal-sink")]
    return {DIST_INFO.sub("*.dist-info", path.split("/")[0]) for path in ours}
