"""The stores in this package keep the contract; the contract's suite finds wrong stores; URLs of folders."""

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
    child_url,
    open_backend,
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


class ReadThenReplace(MemoryBackend):
    """Checks for existence before it creates, in memory."""

    def create(self, path: str, data: bytes) -> None:
        if path in self.list():
            raise FileExistsError(path)
        time.sleep(0.0001)
        self.replace(path, data)


class ListsWithDetails(LocalBackend):
    """Lists as older releases of fsspec: a file that is deleted meanwhile hides the rest of its folder."""

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


class ThreadContract(StateBackendContract):
    racers = "threads"


def test_suite_finds_lost_races_of_processes(tmp_path: Path) -> None:
    """A store that checks for existence first passes the sequential tests and the probe, not the race."""
    StateBackendContract().test_create_refuses_existing_object(ExistsThenWrite(tmp_path / "1"))
    ExistsThenWrite(tmp_path / "2").probe()
    with pytest.raises(AssertionError, match="have not one winner"):
        StateBackendContract().test_exactly_one_of_many_creators_wins(
            ExistsThenWrite(tmp_path / "3"), "create"
        )


def test_suite_finds_lost_races_of_threads() -> None:
    with pytest.raises(AssertionError, match="have not one winner"):
        ThreadContract().test_exactly_one_of_many_creators_wins(
            ReadThenReplace(uuid4().hex), "create"
        )


def test_suite_finds_partly_visible_objects(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="was visible with"):
        StateBackendContract().test_object_is_whole_as_soon_as_it_is_visible(
            ExistsThenWrite(tmp_path)
        )


def test_suite_finds_listing_that_stats_files(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("url", "absolute"),
    [
        ("/data/log", "file:///data/log"),
        ("/data/../log/", "file:///log"),
        ("//data//log", "file:///data/log"),
        ("file:/data/log", "file:///data/log"),
        ("file:///data/log/", "file:///data/log"),
        ("FILE://localhost/data/log", "file:///data/log"),
        ("file:////data", "file:///data"),
        ("file:///a%20b?c=d#e f", "file:///a%20b?c=d#e f"),
        ("memory://name", "memory://name"),
        ("memory://name/query/", "memory://name/query"),
    ],
)
def test_hadoop_urls_of_a_folder_open_one_store(url: str, absolute: str) -> None:
    backend = open_backend(url)
    assert backend.url == absolute
    assert open_backend(backend.url) == backend
    assert backend.process_local == absolute.startswith("memory")


def test_open_backend_makes_a_relative_path_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = open_backend("data/log")
    monkeypatch.chdir("/")
    assert backend.url == f"file://{tmp_path}/data/log"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("hdfs://key:secret@host/log", "hdfs:.*Use an object store"),
        ("file://elsewhere/log", "host 'elsewhere'"),
        ("file:log", "no absolute path"),
        ("file://localhost", "no absolute path"),
        ("memory:name", "two slashes"),
        ("memory://", "must not be empty"),
        ("memory://a/../b", "starts with a dot"),
        ("~/log", "not expanded"),
        ("", "must not be empty"),
        ("/a\0b", "NUL"),
        ("hdfs://name/log", "no create that fails where a file exists.*s3, gs, abfss"),
        ("dbfs:/log", "Use the bucket itself"),
        ("abfss://box@secret/a", "<container>@<account>.dfs.core.windows.net"),
        ("abfss://box@/a", "<container>@<account>.dfs.core.windows.net"),
        ("gs://user:secret@bucket/a", "a bucket has no '@'"),
        ("ftp://secret/a", "no store for URLs that start with 'ftp'.*wal_sink.state_backends"),
    ],
)
def test_url_unfit_for_a_log_is_refused(url: str, reason: str) -> None:
    """The error does not contain the URL, which may contain a secret."""
    with pytest.raises(StateBackendError, match=reason) as caught:
        open_backend(url)
    assert "secret" not in str(caught.value)


def test_open_backend_refuses_options_without_effect() -> None:
    """The error names the option, but not its value."""
    with pytest.raises(StateBackendError, match=r"\['key'\].*remove") as caught:
        open_backend("/data/log", {"key": "secret"})
    assert "secret" not in str(caught.value)
    assert open_backend("/data/log", {}) == open_backend("/data/log")


@pytest.mark.parametrize("url", ["/", "/log/", "file:///log", "file:/", "file:///", "memory://log"])
def test_child_url_is_a_folder_of_its_parent(url: str) -> None:
    child = open_backend(child_url(url, "wal_sink", "a/b"))
    parent = open_backend(url).url
    assert child.url == parent + ("" if parent.endswith("/") else "/") + "wal_sink/a/b"
    assert child_url(url) == url


def test_child_sees_the_objects_of_its_parent(tmp_path: Path) -> None:
    for url in (str(tmp_path), f"memory://{uuid4().hex}"):
        parent, child = open_backend(url), open_backend(child_url(url, "part"))
        parent.create("part/x", b"1")
        child.create("y/z", b"2")
        assert child.list() == ["x", "y/z"]
        assert parent.list() == ["part/x", "part/y/z"]


@pytest.mark.parametrize("part", ["..", "", "a/", "/a", ".hidden"])
def test_child_url_with_invalid_part_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="path"):
        child_url("/log", part)
    with pytest.raises(ValueError, match="URL"):
        child_url("", "part")


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
