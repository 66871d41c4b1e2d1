"""`status --deep`: finds the errors at which the flush would stop."""

from __future__ import annotations

import pytest

from tests.cli.job import KIND, Job, rows_of
from wal_sink.admin.deep_status import deep_status
from wal_sink.admin.query import find_query
from wal_sink.model import paths


def findings(job: Job, *arguments: object) -> list[tuple[str, int | None]]:
    """Run `status --deep`; return kind and epoch of each finding.

    The exit code must be that of the first finding.
    """
    done = job.command("status", "--deep", *arguments)
    listed = done.document["findings"]
    assert done.code == (listed[0]["exit_code"] if listed else 0)
    return [(finding["kind"], finding["epoch"]) for finding in listed]


def damage(job: Job, path: str) -> None:
    """Remove the last byte of an object."""
    job.log_backend.replace(path, job.log_backend.read(path)[:-1])


def manifests(job: Job, epoch: int) -> list[str]:
    """Return the manifests of an epoch."""
    names = (
        (path, paths.MANIFEST.parse(path)) for path in job.log_backend.list(paths.MANIFEST.folder)
    )
    return [path for path, name in names if name and name.epoch == epoch]


def test_sound_log_has_no_findings_and_changes_nothing(job: Job) -> None:
    earlier = job.log_backend.list()
    document = job.command("status", "--deep").document
    assert (document["query_id"], document["pending_epochs"], document["findings"]) == (
        job.query_id,
        3,
        [],
    )
    assert (document["read_epochs"], document["read_bytes"]) == (3, document["pending_bytes"])
    assert document["ledger"] == {"sqlite": 1}
    assert job.log_backend.list() == earlier


def test_deep_status_finds_every_damaged_object(job: Job) -> None:
    """Findings are in the order of the epochs. A damaged manifest hides the epochs before it."""
    for epoch in (2, 4):
        damage(job, job.log_backend.list(paths.segment_folder(epoch))[0])
    job.log_backend.delete([job.log_backend.list(paths.segment_folder(3))[1]])
    assert findings(job) == [("CorruptLog", 2), ("MissingSegment", 3), ("CorruptLog", 4)]
    (path,) = manifests(job, 3)
    job.log_backend.replace(path, b"{")
    assert findings(job) == [("CorruptLog", 3), ("CorruptLog", 4)]
    hole = job.command("status", "--deep").document["findings"][0]
    assert "set-mark CHECKPOINT --to 3 " in hole["remedy"], (
        "epoch 2 comes first, and nobody names it"
    )
    job.log_backend.delete([path])
    assert findings(job) == [("MissingManifest", 3), ("CorruptLog", 4)]


def test_lost_plan_is_a_finding_of_each_pending_epoch(job: Job) -> None:
    job.log_backend.delete(job.log_backend.list(paths.PLAN.folder))
    assert findings(job) == [("CorruptLog", epoch) for epoch in (2, 3, 4)]
    assert job.refused("flush") == (6, "CorruptLog")


def test_altered_table_is_a_finding_until_changed_back(job: Job) -> None:
    job.execute("ALTER TABLE t RENAME COLUMN v TO w")
    assert findings(job) == [("SchemaMismatch", 2)]
    assert job.refused("flush") == (3, "SchemaMismatch")
    job.execute("ALTER TABLE t RENAME COLUMN w TO v")
    assert findings(job) == []


def test_log_findings_are_listed_while_target_is_unavailable(job: Job) -> None:
    job.database.rename(job.folder / "away.db")
    job.database.mkdir()
    assert findings(job) == [("TargetUnavailable", None)]
    damage(job, manifests(job, 3)[0])
    assert findings(job) == [("CorruptLog", 3), ("TargetUnavailable", None)]


@pytest.mark.parametrize(
    ("column", "code", "kind"), [("log_id", 5, "WrongOwner"), ("digest", 7, "Diverged")]
)
def test_ledger_row_of_another_history_is_a_finding(
    job: Job, column: str, code: int, kind: str
) -> None:
    job.execute(f"UPDATE wal_sink_ledger SET {column} = 'other'")
    assert findings(job) == [(kind, None)]
    assert job.refused("flush") == (code, kind)


def test_ledger_row_ahead_of_the_mark_is_no_finding(job: Job) -> None:
    """A flusher that dies before it sets the mark leaves such a row. The next flusher sets the mark."""
    state = job.state
    assert job.command("flush").code == 0
    job.log_backend.delete(
        [
            path
            for path in job.log_backend.list(paths.STATE.folder)
            if (paths.STATE.parse(path) or 0) > state.number
        ]
    )
    assert (job.mark(), findings(job)) == (1, [])
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 2, 3, 4)


def test_deep_status_lists_log_findings_beside_a_refused_option(job: Job) -> None:
    """Only the log names the class of the target, so the operator has to confirm the class."""
    job.kind = ""
    damage(job, manifests(job, 3)[0])
    assert findings(job, "--option", "target=") == [("OptionError", None), ("CorruptLog", 3)]


def test_epochs_trimmed_while_reading_are_no_findings(job: Job) -> None:
    """While the command reads the first segment, another process flushes and trims all epochs."""
    query = find_query(str(job.folder / job.place), options={"target": KIND})

    def flush_once(_size: int) -> None:
        if job.log_backend.list(paths.MANIFEST.folder):
            assert job.command("flush", "--option", "wal.retention=0").code == 0

    assert deep_status(query, progress=flush_once).findings == ()
