"""`flush --follow --under`: one process flushes all queries below a folder."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Self

import pytest

from state_backends import StateBackend, open_backend
from tests.cli.job import KIND, Job, batches, rows_of
from tests.cli.shell import start
from tests.support.programs import ran
from tests.support.s3 import S3
from tests.support.waiting import until
from wal_sink.admin.flush import Follower, at_checkpoint
from wal_sink.admin.under import LogsUnder
from wal_sink.demo.server import choose_port
from wal_sink.errors import OptionError
from wal_sink.protocol.retention import Retention
from wal_sink.wal.location import logs_below

ROOT = Path(__file__).parents[2]
CONFIRMED = {"target": KIND}


def a_job(folder: Path, *epochs: int) -> Job:
    """Return a query that has published some epochs."""
    folder.mkdir(parents=True)
    job = Job(folder)
    batches(job, *epochs)
    return job


class Following:
    """The process of `flush --follow --under .`. The end of the block sends SIGTERM."""

    out = err = ""

    def __init__(self, folder: Path, *more: object) -> None:
        options = (
            "--option",
            f"target={KIND}",
            "--json",
        )  # text for people goes to standard error
        self.process = start(folder, "flush", "--follow", "--under", ".", *options, *more)

    def __enter__(self) -> Self:
        assert self.process.stderr is not None
        while (
            "Flushing every log below" not in self.err
        ):  # before this line SIGTERM kills the command
            self.err += self.process.stderr.readline()
            assert self.process.poll() is None, self.err
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.out, err = self.process.communicate(timeout=60)
        self.err += err


def at_once(_seconds: float) -> bool:
    """End a wait at once."""
    return True


@pytest.fixture
def lines() -> list[str]:
    """Return the lines that a follower reports."""
    return []


@pytest.mark.usefixtures("_on_path")
def test_flush_under_a_folder_flushes_present_and_later_logs(tmp_path: Path) -> None:
    """Metrics and document have both queries."""
    early = a_job(tmp_path / "team" / "early", 0, 1)
    port = choose_port("127.0.0.1")
    with Following(tmp_path, "--metrics-port", port) as follower:
        until(lambda: early.rows() == rows_of(0, 1))
        late = a_job(tmp_path / "late", 0)
        until(lambda: late.rows() == rows_of(0))
        batches(early, 2)
        until(lambda: early.mark() == 2)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            text = page.read().decode()
    assert follower.process.returncode == 0, follower.err
    flushed = {one["query_id"]: one["epochs"] for one in json.loads(follower.out)["targets"]}
    assert flushed == {early.query_id: 3, late.query_id: 1}
    assert all(f'query_id="{query_id}"' in text for query_id in flushed)
    assert f"Query {late.query_id}: flushing file://{tmp_path}/late/checkpoint to" in follower.err


@pytest.mark.usefixtures("_on_path")
def test_container_health_check_fails_without_a_flusher(tmp_path: Path) -> None:
    """The test runs the command of the Dockerfile with another port."""
    text = (ROOT / "docker" / "flusher.Dockerfile").read_text().replace("\\\n", "")
    checks = re.search(r"HEALTHCHECK .*CMD (\[.*\])", text)
    assert checks is not None
    port = choose_port("127.0.0.1")
    command = [sys.executable, *json.loads(checks[1].replace("9123", str(port)))[1:]]
    assert ran(command).returncode == 1
    with Following(tmp_path, "--metrics-port", port):
        assert ran(command).returncode == 0


@pytest.mark.usefixtures("_on_path")
def test_two_flushers_of_one_folder_write_each_row_once(tmp_path: Path) -> None:
    jobs = [a_job(tmp_path / name, *range(20)) for name in "ab"]
    with Following(tmp_path) as one, Following(tmp_path) as other:
        for job in jobs:
            batches(job, 20)
            until(lambda job=job: job.mark() == 20)  # type: ignore[misc]
    assert [one.process.returncode, other.process.returncode] == [0, 0], one.err + other.err
    assert [job.rows() for job in jobs] == [rows_of(*range(21))] * 2


def test_follower_uses_options_of_a_new_run(tmp_path: Path, lines: list[str]) -> None:
    """Flushers start again if a run has other options, and only then."""
    job = a_job(tmp_path / "job", 0)
    follower = Follower(LogsUnder([str(tmp_path)], CONFIRMED), lines.append)
    follower.refresh()
    batches(job, 1)
    follower.refresh()
    assert len(lines) == 1
    job.retention = Retention(us=60_000_000, bytes=1 << 30)
    batches(job, 2)
    follower.refresh()
    until(lambda: job.rows() == rows_of(0, 1, 2))
    (done,) = follower.run(at_once)
    assert (done.epochs, done.rows, done.flushed) == (3, 6, 2)
    assert [line.partition(":")[0] for line in lines] == [f"Query {job.query_id}"] * 2


def deleted(folder: Path) -> bool:
    """Delete a folder; return False if the flusher has made a new file in it."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_follower_stops_flushing_a_deleted_query(tmp_path: Path, lines: list[str]) -> None:
    job = a_job(tmp_path / "job", 0)
    follower = Follower(LogsUnder([str(tmp_path)], CONFIRMED), lines.append)
    follower.refresh()
    until(lambda: job.rows() == rows_of(0))
    until(lambda: deleted(tmp_path / "job" / "checkpoint"))
    follower.refresh()
    assert "is gone. Nothing more is flushed from it" in lines[-1]


def test_checkpoint_outside_the_folders_is_refused(tmp_path: Path, lines: list[str]) -> None:
    """Anyone who can write to the log can change the checkpoint that it names."""
    a_job(tmp_path / "job", 0)
    logs, checkpoint = tmp_path / "logs", tmp_path / "job" / "checkpoint"
    shutil.copytree(checkpoint / "wal_sink", logs)
    follower = Follower(LogsUnder([str(logs)], CONFIRMED), lines.append)
    follower.refresh()
    follower.refresh()
    (line,) = lines
    assert f"names the checkpoint file://{checkpoint}, which is not below file://{logs}" in line
    assert "further --under" in line


def test_checkpoint_below_the_root_folder_is_accepted(tmp_path: Path) -> None:
    """The search finds the log in a part of the tree, since the whole tree is large."""
    job = a_job(tmp_path / "job", 0)
    (place,) = logs_below(open_backend(str(tmp_path)))
    assert LogsUnder(["/"], CONFIRMED)._open(place).query_id == job.query_id


def test_log_of_a_deleted_checkpoint_is_refused(tmp_path: Path, lines: list[str]) -> None:
    job = a_job(tmp_path / "job", 0)
    (tmp_path / "job" / "checkpoint" / "metadata").write_text(
        '{"id":"11111111-2222-3333-4444-555555555555"}'
    )
    Follower(LogsUnder([str(tmp_path)], CONFIRMED), lines.append).refresh()
    (line,) = lines
    assert f"{job.query_id}: not flushed for now. " in line
    assert "11111111-2222-3333-4444-555555555555" in line


def test_option_for_another_database_is_refused(tmp_path: Path, lines: list[str]) -> None:
    """The operator's options apply to all queries. They can confirm a database, but not change it."""
    job = a_job(tmp_path / "job", 0)
    other = {**CONFIRMED, "sqlite.path": str(tmp_path / "other.db")}
    Follower(LogsUnder([str(tmp_path)], other), lines.append).refresh()
    (line,) = lines
    assert f"given sqlite.path={tmp_path}/other.db, and the log says {job.database}" in line
    assert f"wal-sink flush file://{tmp_path}/job/checkpoint --follow" in line
    assert job.rows() == []


def test_follower_ignores_options_of_other_targets(tmp_path: Path, lines: list[str]) -> None:
    job = a_job(tmp_path / "job", 0)
    both = {**CONFIRMED, "cassandra.contactPoints": "10.0.0.1", "wal.retention": "0"}
    follower = Follower(LogsUnder([str(tmp_path)], both), lines.append)
    follower.refresh()
    until(lambda: job.rows() == rows_of(0))
    follower.run(at_once)


def test_follower_waits_for_a_query_to_start(tmp_path: Path, lines: list[str]) -> None:
    """A Connect client follows a checkpoint that the server has not made yet."""
    place = tmp_path / "job" / "checkpoint"
    candidate = at_checkpoint(str(place), None, CONFIRMED)
    follower = Follower(lambda: [candidate], lines.append)
    follower.refresh()
    follower.refresh()
    job = a_job(tmp_path / "job", 0)
    follower.refresh()
    until(lambda: job.rows() == rows_of(0))
    (done,) = follower.run(at_once)
    assert (done.epochs, done.reason) == (1, "stopped")
    assert ["not flushed for now" in line for line in lines] == [True, False]


QUERY = "8498ea58-1266-4e34-a42c-66f173bde06f"
OBJECTS = (
    f"a/offsets/{QUERY}/state/1.json",
    "a/commits/0",
    f"a/wal_sink/{QUERY}/state/0000000001.json",
    f"logs/{QUERY}/state/0000000001.json",
    f"logs/{QUERY}/manifests/{QUERY}/state/0000000001.json",
    f"spark/{QUERY}/state/0/0/1.delta",
    f"spark/{QUERY}/offsets/0",
    "spark/no-query/state/0000000001.json",
)


def logs_among_objects(root: StateBackend) -> list[str]:
    """Make the objects; return the logs that a search finds."""
    for path in OBJECTS:
        root.create(path, b"x")
    return [place.url.removeprefix(f"{root.url}/") for place in logs_below(root)]


def test_search_skips_the_folders_of_spark(tmp_path: Path) -> None:
    """Spark's folders may have millions of files. A log may be in a checkpoint, or outside."""
    for place in ("memory://search", str(tmp_path)):
        logs = logs_among_objects(open_backend(place))
        assert logs == [f"a/wal_sink/{QUERY}", f"logs/{QUERY}"]


def test_search_finds_logs_in_a_bucket(s3: S3) -> None:
    root = open_backend(f"{s3.bucket()}/prefix", s3.options)
    assert logs_among_objects(root) == [f"a/wal_sink/{QUERY}", f"logs/{QUERY}"]


def test_folder_that_cannot_be_searched_is_refused() -> None:
    with pytest.raises(OptionError, match="cannot be searched for logs"):
        LogsUnder(["hdfs://host/checkpoints"], {})
