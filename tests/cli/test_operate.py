"""`verify` and the ways out as processes, over a real Cassandra; `tests.protocol.engine` plays Spark."""

from __future__ import annotations

import json
import subprocess

import pytest

from state_backends import open_backend
from tests.cli.job import EVERYTHING, Job, target
from tests.protocol.damaged import segments
from tests.protocol.operators import edit
from wal_sink import errors
from wal_sink.cli.main import app
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt

pytestmark = pytest.mark.cassandra


def test_verify_sees_a_table_that_was_altered(job: Job) -> None:
    """Under epochs that wait, and without a flusher that would tell; and it is fine when it is repaired."""
    job.node.execute(f"DROP TABLE {job.keyspace}.t")
    for change, words in (
        (f"CREATE TABLE {job.keyspace}.t (k text PRIMARY KEY, w bigint)", "the table is gone"),
        (f"ALTER TABLE {job.keyspace}.t ADD v bigint", "v was bigint (regular), is gone"),
    ):
        found = job.command("verify", "--json")
        (finding,) = found.document["findings"]
        assert (found.code, finding["kind"], finding["epoch"]) == (3, "SchemaMismatch", 2)
        assert words in finding["what"]
        assert job.command("verify", "--offline").code == 0
        job.node.execute(change)
    assert "Nothing is wrong" in job.command("verify").out


def test_verify_does_not_deny_what_the_flusher_has_met(job: Job) -> None:
    """The last sentence of a repaired table, before a flusher has looked again."""
    job.node.execute(f"ALTER TABLE {job.keyspace}.t DROP v")
    assert job.command("flush").code == 3
    job.node.execute(f"ALTER TABLE {job.keyspace}.t ADD v bigint")
    said, found = job.command("verify"), job.command("verify", "--json")
    assert (said.code, found.document["flusher_error"]) == (0, "SchemaMismatch")
    assert "The flusher's SchemaMismatch is repaired, or shows only then" in said.out


def test_verify_and_skip(job: Job) -> None:
    """From the finding to the flush that goes on: exit codes, documents, the question, the rows."""
    healthy = job.command("verify", "--json")
    assert (healthy.code, healthy.document["findings"]) == (0, [])
    assert [healthy.document[name] for name in ("checkpointed", "flushed", "ledger")] == [4, 1, 1]
    assert "Nothing is wrong" in job.command("verify").out

    path = segments(job.world)[1]
    edit(job.world.log_backend, path, job.world.log_backend.read(path)[:-1])
    job.flush(errors.CorruptLog)
    found = job.command("verify", "--json")
    (finding,) = found.document["findings"]
    assert (found.code, finding["kind"], finding["epoch"]) == (6, "CorruptLog", 2)
    assert finding["file"] == f"{job.world.log_backend.url}/{path}"
    said = job.command("verify")
    assert said.code == 6
    assert "wal-sink skip CHECKPOINT 2 --to URL --begun" in said.out

    verb = ("skip", 2, "--to", "aside")
    refused = job.command(*verb, "--json", "--yes")
    assert (refused.code, refused.document["error"]) == (2, "OptionError")
    assert "--begun" in refused.document["remedy"]
    for answer in (None, "", "n\n", "what\n"):
        refused = job.command(*verb, "--begun", "--json", answer=answer)
        assert (refused.code, refused.document["error"]) == (2, "OptionError")
        assert "--yes" in refused.document["remedy"]
        assert "possibly in the table" in refused.err
    assert job.world.log.decided() == []
    assert len(segments(job.world)) == 2
    done = job.command(*verb, "--begun", "--json", "--why", "disk 3 died", answer="y\n")
    assert done.code == 0, done.err
    assert done.document["rows_possibly_in_target"] is True
    decision = done.document["decision"]
    assert (decision["verb"], decision["epoch"], decision["why"]) == ("skip", 2, "disk 3 died")
    copies = job.folder / "aside" / job.world.query_id
    assert decision["where"] == f"file://{copies}"
    assert sorted(f["path"] for f in decision["files"]) == open_backend(str(copies)).list()

    job.flush()
    # The segment before the damaged one may be in the table, or was waiting to be sent with it.
    assert {("b2", 2)} <= EVERYTHING.items() - job.table().items() <= {("a2", 2), ("b2", 2)}
    after = job.command("verify", "--json")
    assert (after.code, after.document["ledger"]) == (0, 4)
    again = job.command(*verb, "--begun", "--yes")
    assert again.code == 2
    assert "is flushed, or was given up" in again.err


def test_verify_of_a_checkpoint_that_was_set_back(job: Job) -> None:
    """A state, no damage: exit code 0, and the last sentence does not deny what the note says."""
    job.flush()
    job.world.checkpoint.delete(["commits/3", "commits/4"])
    found = job.command("verify", "--json")
    assert (found.code, found.document["findings"], found.document["set_back"]) == (0, [], True)
    said = job.command("verify")
    assert said.code == 0
    assert "Note: epoch 4 is flushed, but the checkpoint says 2" in said.out
    assert "Nothing is damaged, but the checkpoint was set back" in said.out
    assert "Nothing is wrong" not in said.out


def test_skip_a_gap(job: Job) -> None:
    """The document names the decision; `--yes` asks no question."""
    edit(job.world.log_backend, paths.MANIFEST.path(Attempt(2, 1)), None)
    job.flush(errors.MissingManifest)
    found = job.command("verify", "--json")
    assert (found.code, found.document["findings"][0]["kind"]) == (6, "MissingManifest")
    assert job.command("skip", 2).code == 2
    done = job.command("skip", 2, "--yes", "--json")
    assert (done.code, done.document["decision"]["verb"]) == (0, "skip")
    job.flush()
    assert EVERYTHING.items() - job.table().items() == {("a2", 2), ("b2", 2)}


def test_rewind(job: Job) -> None:
    """The ledger was truncated, the rows are there."""
    job.node.execute(f"TRUNCATE {job.keyspace}.wal_sink_ledger")
    job.flush(errors.LedgerBehindLog)
    found = job.command("verify", "--json")
    assert (found.code, found.document["findings"][0]["kind"]) == (7, "LedgerBehindLog")
    lost = job.command("rewind", "--to", 0, "--yes", "--json")
    assert (lost.code, lost.document["error"]) == (6, "MissingManifest")
    assert "--to 1" in lost.document["remedy"]
    assert job.command("rewind", "--to", 1).code == 2
    done = job.command("rewind", "--to", 1, "--yes", "--json")
    assert (done.code, done.document["again"]) == (0, 0)
    job.flush()
    assert job.table() == EVERYTHING


def test_a_shadowed_row_is_left_behind(job: Job) -> None:
    """`verify` sees the write time before an update is lost; the row goes on in another table."""
    job.node.execute(
        f"UPDATE {job.keyspace}.wal_sink_ledger USING TIMESTAMP {2**62} SET flushed = 1"
        f" WHERE query_id = '{job.world.query_id}'"
    )
    found = job.command("verify", "--json")
    assert (found.code, found.document["findings"][0]["kind"]) == (7, "LedgerShadowed")
    job.flush(errors.LedgerShadowed)
    named = f"{job.keyspace}.other_ledger"
    made, options = target(job.node, job.keyspace, **{"cassandra.ledgerTable": named})
    option = ("--option", f"cassandra.ledgerTable={named}")
    missing = job.command("rewind", "--to", 1, "--yes", *option)
    assert missing.code == 3
    assert "CREATE TABLE" in missing.err
    statement = missing.err[missing.err.index("CREATE TABLE") :].replace(";", "")
    job.node.execute(statement)
    assert job.command("rewind", "--to", 1, "--yes", *option).code == 0
    job.world.target = made
    job.flush()
    assert job.table() == EVERYTHING
    assert job.command("verify", *option).code == 0
    assert options["cassandra.ledgerTable"] == named


def test_adopt(job: Job) -> None:
    """The checkpoint was renamed; a copy of it is refused as long as the original is there."""
    copied = subprocess.run(["cp", "-r", "checkpoint", "copy"], cwd=job.folder, check=True)
    assert copied.returncode == 0
    for word in ((), ("--original-is-gone",)):  # it is there, whatever is said
        refused = job.command("adopt", "--yes", "--json", *word, checkpoint="copy")
        assert (refused.code, refused.document["error"]) == (5, "WrongOwner")
    (job.folder / "checkpoint").rename(job.folder / "renamed")
    found = job.command("verify", "--json", checkpoint="renamed")
    assert (found.code, found.document["findings"][0]["kind"]) == (5, "WrongOwner")
    assert job.command("adopt", checkpoint="renamed").code == 2
    done = job.command("adopt", "--yes", "--json", checkpoint="renamed")
    assert done.code == 0, done.err
    assert done.document["after"]["ledger.checkpoint"] == f"file://{job.folder / 'renamed'}"
    world = job.world
    world.checkpoint = open_backend(str(job.folder / "renamed"))
    world.log_backend = open_backend(str(job.folder / "renamed" / "wal_sink" / world.query_id))
    job.flush()
    assert job.table() == EVERYTHING
    assert job.command("verify", checkpoint="renamed").code == 0


def test_a_target_that_cannot_be_asked(job: Job) -> None:
    """It is reported, after what the log itself says; `--offline` does not ask."""
    elsewhere = ("--option", "cassandra.port=1", "--option", "cassandra.requestTimeout=1")
    found = job.command("verify", "--json", *elsewhere)
    (finding,) = found.document["findings"]
    assert (found.code, finding["kind"]) == (4, "TargetUnavailable")
    assert found.document["ledger"] is None
    edit(job.world.log_backend, paths.MANIFEST.path(Attempt(3, 1)), b"{")
    found = job.command("verify", "--json", *elsewhere)
    kinds = [finding["kind"] for finding in found.document["findings"]]
    assert (found.code, kinds) == (6, ["CorruptLog", "TargetUnavailable"])
    assert job.command("verify", "--offline").code == 6
    stopped = job.command("skip", 2, "--to", "aside", "--yes", *elsewhere)
    assert stopped.code == 4


REFUSED = (
    (["skip", "../../1", "--to", "aside"], "EPOCH"),
    (["skip", "-1", "--to", "aside"], "-1"),
    (["skip", "2", "--to", "memory://aside"], "--to"),
    (["skip", "2", "--to", "nosuch://aside"], "--to"),
    (["skip", "2", "--to", "checkpoint/../checkpoint/x"], "is inside of"),
    (["skip", "1e9"], "EPOCH"),
    (["rewind", "--to", "../1"], "--to"),
    (["adopt", "--option", "s3cret"], "NAME=VALUE"),
    (["adopt", "--wal", "nowhere"], "--wal"),
    (["skip", "2", "--option", 'keyspace=x"; DROP KEYSPACE y'], "keyspace"),
    (["skip", "2", "--option", "table=t'; --"], "table"),
    (["skip", "2", "--option", "cassandra.ledgerTable=../x"], "ledgerTable"),
    (["skip", "2", "--option", "cassandra.pasword=s3cret"], "cassandra.password"),
)


def test_what_cannot_be_meant_is_refused(job: Job) -> None:
    """By exit code 2, naming it, without a change, and without showing what may be a secret."""
    before = job.world.log_backend.list()
    for arguments, named in REFUSED:
        done = job.command(*arguments, "--yes")
        assert done.code == 2, (arguments, done.err)
        assert named in done.err.replace("\n", ""), arguments
        assert "s3cret" not in done.err, arguments
        assert job.world.log_backend.list() == before, arguments


def test_a_plan_is_not_a_statement(job: Job) -> None:
    """The name in its details stands quoted in statements, and has to be that of the options."""
    (path,) = job.world.log_backend.list(paths.PLAN.folder)
    fields = json.loads(job.world.log_backend.read(path))
    more = f"{fields['details']['table']} (k) VALUES ('x'); --"
    details = fields["details"] | {"table": more}
    edit(job.world.log_backend, path, json.dumps(fields | {"details": details}).encode())
    job.flush(errors.OptionError)
    assert job.table().keys() == {"a0", "b0", "a1", "b1"}
    edit(job.world.log_backend, path, json.dumps(fields | {"table": more}).encode())
    job.flush()
    assert job.table() == EVERYTHING


def test_rows_go_to_the_table_that_the_options_name(job: Job) -> None:
    """Not to one that only a plan in the log names, whole and well formed; at the operator's word they do."""
    job.node.execute(f"CREATE TABLE {job.keyspace}.other (k text PRIMARY KEY, v bigint)")
    (path,) = job.world.log_backend.list(paths.PLAN.folder)
    fields = json.loads(job.world.log_backend.read(path))
    details = fields["details"] | {"table": "other"}
    forged = fields | {"table": f'"{job.keyspace}"."other"', "details": details}
    edit(job.world.log_backend, path, json.dumps(forged).encode())
    job.flush(errors.OptionError)
    refused = job.command("flush", "--json")
    assert (refused.code, refused.document["error"]) == (2, "OptionError")
    words = ("--option", f"keyspace={job.keyspace}", "--option", "table=other")
    assert f"wal-sink flush CHECKPOINT {' '.join(words)}`" in refused.document["remedy"]
    found = job.node.execute(f"SELECT k FROM {job.keyspace}.other")
    assert list(found) == []
    assert job.command("flush", "--json", *words).code == 0
    found = job.node.execute(f"SELECT k FROM {job.keyspace}.other")
    assert {row.k for row in found} == EVERYTHING.keys() - {"a0", "b0", "a1", "b1"}


def test_every_remedy_names_a_command_that_exists() -> None:
    """Verbs and flags in `wal_sink.errors` are those of the command line."""
    from wal_sink import errors  # noqa: PLC0415

    named = {
        *(errors.VERIFY, errors.ADOPT, errors.skip(1), errors.skip(1, begun=True)),
        *(errors.skip_lost(1), errors.rewind(1)),
    }
    verbs = {text.partition("wal-sink ")[2].split(" ")[0].rstrip("`") for text in named}
    known = {
        (command.name or command.callback.__name__.replace("_", "-"))
        for command in app.registered_commands
        if command.callback is not None
    }
    assert verbs == {"verify", "adopt", "skip", "rewind"}
    assert verbs < known
