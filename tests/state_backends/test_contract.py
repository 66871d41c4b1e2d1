"""The stores in this package keep the contract, and the contract's suite finds wrong stores."""

import builtins
import os
import re
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from state_backends import (
    LocalBackend,
    MemoryBackend,
    StateBackend,
    StateBackendError,
)
from tests.state_backends.contract import StateBackendContract
from tests.support.programs import ran

README = Path(__file__).parents[2] / "state_backends" / "README.md"


class TestLocalBackend(StateBackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> StateBackend:
        return LocalBackend(tmp_path / "new" / "log")


class TestMemoryBackend(StateBackendContract):
    racers = "threads"
    # The objects end with the process.
    test_killed_writer_leaves_nothing_visible = None  # type: ignore[assignment]
    test_acknowledged_object_survives_a_kill = None  # type: ignore[assignment]

    @pytest.fixture
    def backend(self) -> StateBackend:
        return MemoryBackend(uuid4().hex)


_GAP_S = 0.001
"""The time between check and write in the wrong stores, so that each race shows the bug."""


class ExistsThenWrite(LocalBackend):
    """Checks for existence before it creates, and writes in place, as fsspec does."""

    def create(self, path: str, data: bytes) -> None:
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        exists = file.exists()
        time.sleep(_GAP_S)
        if exists:
            raise FileExistsError(path)
        with file.open("wb") as out:
            out.write(data[:1])
            out.flush()
            time.sleep(_GAP_S)
            out.write(data[1:])


class ListsWithDetails(LocalBackend):
    """Lists as older releases of fsspec do, where a file deleted meanwhile hides the rest of its folder."""

    def list(self, prefix: str = "") -> builtins.list[str]:
        paths = []
        for folder, _, names in os.walk(self._root / prefix):
            time.sleep(0.001)  # so that the bug shows on a busy machine, too
            with suppress(FileNotFoundError):
                paths += [
                    str(file) for file in map(Path(folder).joinpath, names) if file.stat().st_size
                ]
        return sorted(path.removeprefix(f"{self._root}/") for path in paths)


class Forgetful(MemoryBackend):
    """Lists no objects."""

    def list(self, prefix: str = "") -> builtins.list[str]:
        return []


def test_suite_finds_lost_races_of_processes(tmp_path: Path) -> None:
    """A store that checks for existence first passes the sequential tests and the probe, not the race."""
    StateBackendContract().test_create_refuses_existing_object(ExistsThenWrite(tmp_path / "1"))
    ExistsThenWrite(tmp_path / "2").probe()
    with pytest.raises(AssertionError, match="have not one winner"):
        StateBackendContract().test_exactly_one_of_many_creators_wins(
            ExistsThenWrite(tmp_path / "3"), "create"
        )


def test_suite_finds_partly_visible_objects(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="was visible with"):
        StateBackendContract().test_object_is_whole_as_soon_as_it_is_visible(
            ExistsThenWrite(tmp_path)
        )


def test_suite_finds_a_listing_that_loses_files(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"objects were not listed|was created, not listed"):
        StateBackendContract().test_list_loses_nothing_while_others_come_and_go(
            ListsWithDetails(tmp_path)
        )


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (Forgetful("forgetful"), "does not list"),
        (type("Overwrites", (MemoryBackend,), {"create": MemoryBackend.replace})("o"), "second"),
        (type("Keeps", (MemoryBackend,), {"delete": lambda *_: None})("k"), "was deleted"),
    ],
)
def test_probe_refuses_store_that_breaks_a_guarantee(backend: StateBackend, reason: str) -> None:
    """The error names the guarantee that is broken, and a remedy."""
    with pytest.raises(StateBackendError, match=f"{reason}.*Choose a store"):
        backend.probe()


def test_readme_examples_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's code opens stores, and runs the contract suite over a store of another package."""
    use, s3, suite = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for example in (use.replace("/data/", f"{tmp_path}/"), s3):
        exec(compile(example, str(README), "exec"), {})
    (tmp_path / "my_package.py").write_text("from state_backends import LocalBackend as MyBackend")
    shutil.copy(README.parents[1] / "tests/state_backends/contract.py", tmp_path)
    (tmp_path / "test_my_backend.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-k", "sorted or exactly_one", str(tmp_path)]
    ended = ran(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(README.parents[1]), str(tmp_path)])},
    )
    assert "3 passed" in ended.stdout, ended.stdout + ended.stderr
