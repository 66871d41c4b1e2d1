"""Repairs after which the flush continues, and the table has the right rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.job import Job, batches, rows_of
from wal_sink.errors import Fenced
from wal_sink.model import paths
from wal_sink.model.state import EpochManifest
from wal_sink.protocol.retention import Retention
from wal_sink.wal.manifests import ManifestChain


def manifest_of(job: Job, epoch: int) -> EpochManifest:
    """Return the manifest of an epoch."""
    return ManifestChain(job.log_backend).chain(job.state, -1)[epoch]


def lose_manifests(job: Job, *epochs: int) -> None:
    """Delete manifests of epochs."""
    job.log_backend.delete([manifest_of(job, epoch).manifest for epoch in epochs])


# --- target or log went back, or lost something ---------------------------------------------------


def target_is_restored_to_a_trimmed_epoch(job: Job) -> None:
    job.retention = Retention(us=0, bytes=0)
    batches(job, 5)
    backup = shutil.copy(job.database, job.folder / "backup.db")
    assert job.command("flush").code == 0
    assert job.state.trimmed == 5
    shutil.copy(backup, job.database)


def rows_and_ledger_are_restored_apart(job: Job) -> None:
    """The backups of rows and ledger row may be of different moments."""
    job.kind = "tests.cli.apart:Apart"
    backup = shutil.copy(job.database, job.folder / "backup.db")
    assert job.command("flush").code == 0
    shutil.copy(backup, job.database)


def log_is_restored_without_its_target(job: Job) -> None:
    """The ledger row has an epoch that the restored log lacks. Its rows stay in the table."""
    shutil.copytree(job.folder / "checkpoint", job.folder / "backup")
    job.run().batch([("a5", 5), ("b5", 5)])
    assert job.command("flush").code == 0
    shutil.rmtree(job.folder / "checkpoint")
    (job.folder / "backup").rename(job.folder / "checkpoint")


def ledger_row_is_lost(job: Job) -> None:
    job.execute("DELETE FROM wal_sink_ledger")


def log_is_lost_with_pending_epochs(job: Job) -> None:
    shutil.rmtree(job.folder / "checkpoint" / "wal_sink")
    batches(job, 5)
    assert job.command("adopt", "--yes").code == 0


@pytest.mark.parametrize(
    ("damage", "error", "mark", "former", "epochs"),
    [
        (target_is_restored_to_a_trimmed_epoch, (7, "LedgerBehindLog"), 5, 1, (0, 1)),
        (rows_and_ledger_are_restored_apart, (7, "LedgerBehindLog"), 1, 1, (0, 1, 2, 3, 4)),
        (log_is_restored_without_its_target, (7, "Diverged"), 4, 5, (0, 1, 2, 3, 4, 5)),
        (ledger_row_is_lost, (7, "LedgerBehindLog"), 1, None, (0, 1, 2, 3, 4)),
        (log_is_lost_with_pending_epochs, (7, "LedgerBehindLog"), 4, 1, (0, 1, 5)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_set_mark_lets_the_flush_continue(
    job: Job,
    damage: Callable[[Job], None],
    error: tuple[int, str],
    mark: int,
    former: int | None,
    epochs: tuple[int, ...],
) -> None:
    """Until the command, the flush stops, and `status --deep` reports the same error."""
    damage(job)
    assert job.refused("flush") == error
    stopped = job.command("status", "--deep")
    assert (stopped.code, stopped.document["findings"][0]["kind"]) == error
    assert "set-mark CHECKPOINT --to " in stopped.document["findings"][0]["remedy"]
    assert job.refused("set-mark", "--to", mark) == (2, "OptionError"), "nobody has answered yes"
    done = job.command("set-mark", "--to", mark, "--yes")
    assert (done.code, done.document["former"], done.document["epoch"]) == (0, former, mark)
    assert job.command("flush").code == 0
    following = job.state.last.epoch + 1
    batches(job, following)
    assert job.command("flush").code == 0
    assert job.rows() == sorted(rows_of(*epochs, following), key=lambda row: (row[1], row[0]))


def test_set_mark_to_earlier_epoch_flushes_later_epochs_again(job: Job) -> None:
    assert job.command("flush").code == 0
    job.execute("DELETE FROM t WHERE v > 2")
    assert job.command("set-mark", "--to", 2, "--yes").code == 0
    assert job.mark() == 2
    assert job.command("flush").document["epochs"] == 2
    assert job.rows() == rows_of(0, 1, 2, 3, 4)


def test_restored_target_within_retention_needs_no_command(job: Job) -> None:
    backup = shutil.copy(job.database, job.folder / "backup.db")
    assert job.command("flush").code == 0
    shutil.copy(backup, job.database)
    answer = job.command("status", "--deep")
    assert (answer.code, answer.document["ledger"]) == (0, {"sqlite": 1})
    assert "went back to epoch 1" in answer.document["notes"][0]
    assert job.command("flush").document["epochs"] == 3
    assert job.rows() == rows_of(0, 1, 2, 3, 4)


def test_epoch_with_a_lost_manifest_can_be_given_up(job: Job) -> None:
    lose_manifests(job, 2)
    assert job.refused("flush") == (6, "MissingManifest")
    inspected = job.command("status", "--deep")
    finding = inspected.document["findings"][0]
    assert (inspected.code, finding["kind"], finding["epoch"]) == (6, "MissingManifest", 2)
    assert job.refused("give-up", "--epoch", 3, "--yes") == (2, "OptionError")
    for answer in (None, "", "n\n", "what\n"):
        refused = job.command("give-up", "--epoch", 2, answer=answer)
        assert (refused.code, refused.document["error"]) == (2, "OptionError")
        assert "Epoch 2 is skipped for sqlite" in refused.err
    assert not job.state.given_up
    done = job.command("give-up", "--epoch", 2, answer="y\n")
    assert (done.code, done.document["targets"], done.document["epoch"]) == (0, ["sqlite"], 2)
    assert job.command("status", "--deep").code == 0
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 3, 4)
    status = job.command("status").document
    assert status["unsafe_because"] == "1 epoch was given up, and only the log has the rows"


def test_set_mark_skips_two_lost_manifests(job: Job) -> None:
    """The next manifest has the digest of the last lost one."""
    lose_manifests(job, 2, 3)
    assert job.refused("set-mark", "--to", 2, "--yes") == (6, "MissingManifest")
    assert job.command("set-mark", "--to", 3, "--yes").code == 0
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 4)


def test_trim_keeps_files_of_a_given_up_epoch(job: Job) -> None:
    job.retention = Retention(us=0, bytes=0)
    batches(job, 5)
    damaged, whole = job.log_backend.list(paths.segment_folder(2))
    (job.folder / "checkpoint" / "wal_sink" / job.query_id / damaged).write_bytes(b"")
    assert job.refused("flush") == (6, "CorruptLog")
    assert job.command("give-up", "--epoch", 2, "--yes").code == 0
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 3, 4, 5)
    assert job.log_backend.list(paths.SEGMENT.folder) == [damaged, whole]
    assert job.command("show", 2).document["epochs"][0]["state"] == "given up"


def test_epoch_that_was_never_published_can_be_given_up(job: Job) -> None:
    """A `foreachBatch` function did not call the writer, or Spark's state repartition completed an epoch."""
    run = job.run()
    run.write_offsets()
    run.write_commit([])
    assert job.refused("flush") == (6, "MissingManifest")
    assert job.rows() == rows_of(0, 1, 2, 3, 4)
    assert job.command("status", "--deep").code == 6
    assert job.refused("give-up", "--epoch", 5, "--target", "sqlite", "--yes") == (2, "OptionError")
    for _ in range(2):  # to repeat the command changes nothing
        assert job.command("give-up", "--epoch", 5, "--yes").code == 0
    batches(job, 6)
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 2, 3, 4, 6)
    assert job.command("status", "--deep").code == 0


# --- something was moved, copied or deleted ------------------------------------------------------


def test_moved_checkpoint_is_adopted(job: Job) -> None:
    job.move("moved")
    assert job.refused("flush") == (5, "WrongOwner")
    answer = job.command("status", "--deep")
    assert (answer.code, answer.document["findings"][0]["kind"]) == (5, "WrongOwner")
    assert job.refused("adopt") == (2, "OptionError")
    done = job.command("adopt", "--yes")
    assert done.code == 0, done.err
    assert done.document["names"]["checkpoint"] == job.checkpoint.url
    assert job.command("flush").code == 0
    batches(job, 5)
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 2, 3, 4, 5)
    assert job.refused("adopt", "--yes") == (2, "OptionError")


def test_adoption_fences_a_run_that_had_opened(job: Job) -> None:
    run = job.run()
    run.batch([("a5", 5)])
    job.move("moved")
    assert job.command("adopt", "--yes").code == 0
    copied = job.run()
    copied.run_id = run.run_id
    with pytest.raises(Fenced):
        copied.publish([("a6", 6)])


def test_log_that_was_moved_is_adopted(job: Job, tmp_path: Path) -> None:
    """`--wal` is the folder above the log. After the command, the checkpoint names the log."""
    (tmp_path / "logs").mkdir()
    folder = tmp_path / "checkpoint" / "wal_sink" / job.query_id
    folder.rename(tmp_path / "logs" / job.query_id)
    wal = ("--wal", str(tmp_path / "logs"))
    assert job.refused("flush") == (6, "CorruptLog")
    assert job.refused("flush", *wal) == (5, "WrongOwner")
    assert job.command("adopt", *wal, "--yes").code == 0
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 2, 3, 4)


def test_adopt_and_set_mark_keep_the_send_count(job: Job) -> None:
    """Otherwise elements of a list would be sent again with the same timestamps."""
    job.execute("UPDATE wal_sink_ledger SET digest = digest || '+3'")
    job.move("moved")
    assert job.command("adopt", "--yes").code == 0
    assert job.command("set-mark", "--to", 1, "--yes").code == 0
    (digest,) = job.execute("SELECT digest FROM wal_sink_ledger")[0]
    assert str(digest).endswith("+3")
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 2, 3, 4)


def test_adoption_of_a_copy_fences_the_original(job: Job) -> None:
    shutil.copytree(job.folder / "checkpoint", job.folder / "copy")
    wal = ("--wal", str(job.folder / "copy" / "wal_sink"))
    job.use("copy")
    assert job.refused("flush", *wal) == (5, "WrongOwner")
    assert job.command("adopt", *wal, "--yes").code == 0
    job.use("checkpoint")
    assert job.refused("flush") == (5, "WrongOwner")
    assert job.rows() == rows_of(0, 1)
    job.use("copy")
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 2, 3, 4)


def test_commands_name_the_url_of_a_deleted_log(job: Job) -> None:
    job.log_backend.delete(job.log_backend.list())
    for verb in ("status", "show", "flush", "adopt"):
        stopped = job.command(verb)
        assert (stopped.code, stopped.document["error"]) == (6, "CorruptLog"), verb
        assert f"{job.log_backend.url}, and there is none" in stopped.document["what"]


def test_new_log_with_an_old_ledger_row_is_adopted(job: Job) -> None:
    """The log was deleted after everything was flushed."""
    assert job.command("flush").code == 0
    shutil.rmtree(job.folder / "checkpoint" / "wal_sink")
    batches(job, 5)
    assert job.refused("flush") == (5, "WrongOwner")
    assert job.command("adopt", "--yes").code == 0
    assert job.command("flush").code == 0
    assert job.rows() == rows_of(0, 1, 2, 3, 4, 5)


# --- what is refused -----------------------------------------------------------------------------


def test_repair_of_an_unavailable_target_changes_nothing(job: Job) -> None:
    state_before = job.state
    job.database.rename(job.folder / "away.db")
    job.database.mkdir()
    for arguments in (("set-mark", "--to", 1), ("adopt",)):
        assert job.refused(*arguments, "--yes")[0] == 4, arguments
    assert job.state.targets == state_before.targets
    assert job.state.log_id == state_before.log_id


@pytest.mark.parametrize(
    "arguments",
    [
        ("give-up",),
        ("give-up", "--epoch", "1"),
        ("give-up", "--epoch", "3"),
        ("give-up", "--epoch", "9"),
        ("give-up", "--epoch", "2", "--target", "other"),
        ("give-up", "--target", "other"),
        ("set-mark", "--to", "5"),
        ("set-mark", "--to", "1", "--target", "other"),
        ("adopt",),
        ("adopt", "--wal", "nowhere"),
    ],
)
def test_refused_repair_changes_nothing(job: Job, arguments: tuple[str, ...]) -> None:
    state_before = job.state
    assert job.refused(*arguments, "--yes") == (2, "OptionError")
    after = job.state
    assert (after.targets, after.given_up, after.log_id) == (
        state_before.targets,
        (),
        state_before.log_id,
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("give-up", "--epoch", "../../1"), "--epoch"),
        (("give-up", "--epoch", "1e9"), "--epoch"),
        (("set-mark", "--to", "-2"), "--to"),
        (("set-mark",), "--to"),
        (("adopt", "--option", "s3cret"), "NAME=VALUE"),
        (("set-mark", "--to", "1", "--option", "sqlite.pth=s3cret"), "sqlite.path"),
    ],
)
def test_error_names_arguments_that_cannot_be_parsed(
    job: Job, arguments: tuple[str, ...], named: str
) -> None:
    """The error does not show the value, which may be a secret."""
    done = job.command(*arguments, "--yes")
    assert done.code == 2
    assert named in done.out + done.err
    assert "s3cret" not in done.out + done.err
