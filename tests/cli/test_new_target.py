"""`wal-sink new-target` writes a folder whose tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.programs import ran
from wal_sink.cli.new_target import write
from wal_sink.errors import OptionError

ROOT = Path(__file__).parents[2]


def test_its_tests_pass(tmp_path: Path) -> None:
    """As they are written, from its folder."""
    made = write("my_store", tmp_path / "new")
    assert made.files == ("README.md", "pyproject.toml", "wal_sink_my_store.py", "test_contract.py")
    done = ran(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "new",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout


def test_its_entry_point_names_its_class(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    write("my_store", folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    (name, place), *_ = project["entry-points"]["wal_sink.targets"].items()
    script = f"""
        from wal_sink.targets.registry import target_type
        assert target_type("{place}").name == "{name}" == "my_store"
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(map(str.strip, script.splitlines()))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"},
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [("My-Store", "no name for a target"), ("delta", "installed already"), ("mine", "is there")],
)
def test_what_is_refused(tmp_path: Path, name: str, says: str) -> None:
    """And nothing is written."""
    (tmp_path / "mine").mkdir()
    with pytest.raises(OptionError, match=says):
        write(name, tmp_path / name)
    assert [*tmp_path.rglob("*")] == [tmp_path / "mine"]
