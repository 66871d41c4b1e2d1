"""The bugs: what a hurried change could do to the protocol, as a replacement of a few words."""

from __future__ import annotations

from typing import NamedTuple

PROTOCOL = (
    "tests/unit/test_protocol_decisions.py",
    "tests/protocol/test_rules.py",
    "tests/protocol/test_stream_writer.py",
    "tests/protocol/test_crash_everywhere.py",
)
"""Where a bug is looked for, the quick ones first."""

HEARTBEAT = ("tests/unit/test_heartbeat.py", "tests/protocol/test_future_heartbeat.py")
"""Where a bug about who is alive is looked for."""


INDEXES = ("tests/unit/test_cassandra_indexes.py",)
DELETES = ("tests/unit/test_operations.py",)


class Bug(NamedTuple):
    """One deliberate bug."""

    name: str
    file: str
    right: str
    """Stands in the file exactly once."""
    wrong: str
    tests: tuple[str, ...] = PROTOCOL


ADDING = ("tests/contract/test_sqlite_target.py", "tests/protocol/test_adding_rows.py")
"""Where a bug about rows that count by transaction is looked for."""

STAGING = ("tests/protocol/test_staged_rows.py",)
"""Where a bug about rows that are staged is looked for."""

DELTA = ("tests/delta/test_commits.py", "tests/delta/test_target_contract.py")
"""Where a bug of the target Delta Lake is looked for."""

BUGS = (
    Bug(
        "two threads learn a record at once",
        "wal_sink/model/codec.py",
        "        msgspec.json.Decoder(kind)\n",
        "        assert kind\n",
        ("tests/unit/test_records.py",),
    ),
    Bug(
        "a ledger without transactions is taken",
        "wal_sink/targets/sql/target.py",
        "        stays = ledger.read() is not None\n",
        "        stays = False\n",
        ("tests/contract/test_sql_target.py",),
    ),
    Bug(
        "a value that the database changes is taken",
        "wal_sink/targets/sql/columns.py",
        "if fitting is not None and fitting.false_count:",
        "if fitting is None and fitting.false_count:",
        ("tests/contract/test_sql_target.py",),
    ),
    Bug(
        "a session closes its connection twice",
        "wal_sink/targets/sql/session.py",
        "            self._closed = True\n",
        "",
        ("tests/contract/test_sql_target.py",),
    ),
    Bug(
        "a percent sign in a name stands for a value",
        "wal_sink/targets/sql/ledger.py",
        'return name.replace("%", "%%") if',
        "return name if",
        ("tests/postgresql/test_sql_target.py",),
    ),
    Bug(
        "an update that counts changed rows is taken",
        "wal_sink/targets/sql/target.py",
        "        if not found:\n",
        "        if not found and stays:\n",
        ("tests/postgresql/test_sql_target.py",),
    ),
    Bug(
        "rows are committed before finish",
        "wal_sink/targets/sql/session.py",
        "                self._database.insert(self._connection, plan, rows.batch)\n",
        "                self._database.insert(self._connection, plan, rows.batch)\n"
        "                self._connection.commit()\n",
        ADDING,
    ),
    Bug(
        "start forgets nothing",
        "wal_sink/targets/sql/session.py",
        "        self._forget()\n        self._window = window\n",
        "        self._window = window\n",
        ADDING,
    ),
    Bug(
        "finish without its rows",
        "wal_sink/targets/sql/session.py",
        "        if self._window != window:\n            self._forget()\n"
        "            return Outcome.REFUSED\n",
        "",
        ADDING,
    ),
    Bug(
        "finish asked again after its transaction has ended",
        "wal_sink/flush/target_connection.py",
        "        for left in reversed(range(1 if self._counted_by_finish else _FINISH_TRIES)):\n",
        "        for left in reversed(range(_FINISH_TRIES)):\n",
        ADDING,
    ),
    Bug(
        "a transaction that the database has lost taken for a shadowed ledger",
        "wal_sink/protocol/ledger_updates.py",
        "    if mark.begun == window and (atomic or not applied):\n",
        "    if mark.begun == window and not applied:\n",
        ADDING,
    ),
    Bug(
        "a flush that is interrupted keeps its transaction",
        "wal_sink/flush/flusher.py",
        "            self._target.give_up_rows()\n",
        "",
        ADDING,
    ),
    Bug(
        "a commit upon a later look than the ledger row's",
        "wal_sink/targets/delta/session.py",
        "            table = self._table()\n",
        "            table = self._refreshed()\n",
        DELTA,
    ),
    Bug(
        "files for another shape of the table are committed",
        "wal_sink/targets/delta/session.py",
        "            if any(receipt.table != table.fingerprint for receipt in staged):\n",
        "            if False:\n",
        DELTA,
    ),
    Bug(
        "files that are gone are committed",
        "wal_sink/targets/delta/session.py",
        "        if staged and (gone := self._files.missing(receipt.path for receipt in staged)):\n",
        "        if staged and (gone := self._files.missing([])):\n",
        DELTA,
    ),
    Bug(
        "a commit that met itself is taken for another one",
        "wal_sink/targets/delta/session.py",
        "                if there == number:  # its own, whose answer was lost\n                    break\n",
        "",
        DELTA,
    ),
    Bug(
        "an old handle goes on upon a table that was made again",
        "wal_sink/targets/delta/table.py",
        "        if self._files.missing([_commit_file(self._table.version())]):\n",
        "        if self._files.missing([]):\n",
        DELTA,
    ),
    Bug(
        "a time's upper bound is rounded down",
        "wal_sink/targets/delta/statistics.py",
        "(1_000 - rest) if up and rest else -rest",
        "-rest",
        ("tests/unit/test_delta_statistics.py",),
    ),
    Bug(
        "bounds although a column has NaN",
        "wal_sink/targets/delta/statistics.py",
        "        if field.name in with_nan or not full",
        "        if not full",
        ("tests/unit/test_delta_statistics.py",),
    ),
    Bug(
        "what a lost answer may still commit is deleted",
        "wal_sink/flush/receipts.py",
        "        if outcome is Outcome.REFUSED:\n",
        "        if outcome is not Outcome.APPLIED:\n",
        STAGING,
    ),
    Bug(
        "finish over another connection than the rows",
        "wal_sink/flush/receipts.py",
        "        if self._of != window:\n",
        "        if self._of not in (window, None):\n",
        STAGING,
    ),
    Bug(
        "receipts outlive their try",
        "wal_sink/flush/receipts.py",
        "        taken, self._kept, self._of = tuple(self._kept), [], None\n",
        "        taken, self._of = tuple(self._kept), None\n",
        STAGING,
    ),
    Bug(
        "a flush that is given up leaves what it has staged",
        "wal_sink/flush/target_connection.py",
        "            self._receipts.discard(session)\n            session.close()\n",
        "            session.close()\n",
        STAGING,
    ),
    Bug(
        "what a session has staged is not committed with what tasks have",
        "wal_sink/flush/target_connection.py",
        "            self._receipts.add(drained(session))\n",
        "            drained(session)\n",
        STAGING,
    ),
    Bug(
        "finish before write",
        "wal_sink/flush/flusher.py",
        "        if not self._write(window, chosen, given_up):\n"
        "            self._target.give_up_rows()\n"
        "            return\n"
        "        if not self._target.finish(window):\n            return\n",
        "        if not self._target.finish(window):\n            return\n"
        "        if not self._write(window, chosen, given_up):\n            return\n"
        "        with self._target.session() as session:\n"
        "            session.drain()\n",
    ),
    Bug(
        "finish before the rows are acknowledged",
        "wal_sink/flush/target_connection.py",
        "        with self.session() as session:\n"
        "            self._receipts.add(drained(session))\n"
        "        for left in reversed(range(1 if self._counted_by_finish else _FINISH_TRIES)):\n"
        '            self._reporter.say("finishing", window.last)\n'
        "            with self.session() as session:\n"
        "                outcome = self._receipts.finish(session, window)\n",
        "        for left in reversed(range(1 if self._counted_by_finish else _FINISH_TRIES)):\n"
        '            self._reporter.say("finishing", window.last)\n'
        "            with self.session() as session:\n"
        "                outcome = self._receipts.finish(session, window)\n"
        "                session.drain()\n",
    ),
    Bug(
        "trim before finish",
        "wal_sink/flush/flusher.py",
        "        if not self._target.finish(window):\n            return\n",
        "        self.trimmer.trim([epoch.epoch for epoch in window.epochs])\n"
        "        if not self._target.finish(window):\n            return\n",
    ),
    Bug(
        "trim before the record",
        "wal_sink/flush/flusher.py",
        "        self._record(window, given_up)\n"
        "        if trimmable := self.trimmer.at_once(window):\n"
        "            attempts = {Attempt(begun.epoch, begun.generation) for begun in window.epochs}\n"
        "            self.trimmer.trim(trimmable, attempts)\n",
        "        self.trimmer.trim([epoch.epoch for epoch in window.epochs])\n"
        "        self._record(window, given_up)\n",
    ),
    Bug(
        "the order of named sources counts",
        "wal_sink/model/offsets.py",
        "    return sorted(lines)\n",
        "    return lines\n",
        ("tests/unit/test_offsets.py",),
    ),
    Bug(
        "only the newest record of a window is made anew",
        "wal_sink/flush/trimmer.py",
        "        self._records_seen = not lost\n        return lost\n",
        "        self._records_seen = True\n        return ()\n",
        ("tests/protocol/test_lost_records.py",),
    ),
    Bug(
        "an epoch whose record is lost stops the flush",
        "wal_sink/wal/trim.py",
        "            if _is_record_lost(log, epoch):\n                stay.append(error)\n"
        "                continue\n",
        "",
        ("tests/protocol/test_lost_records.py",),
    ),
    Bug(
        "an epoch whose record is lost is deleted",
        "wal_sink/wal/trim.py",
        "                stay.append(error)\n                continue\n",
        "                trimmed[epoch] = attempts\n                continue\n",
        ("tests/protocol/test_lost_records.py",),
    ),
    Bug(
        "a run that is asked counts as newer than all runs",
        "wal_sink/flush/run_history.py",
        "            seen.note(epoch, run_id, seen.runs[run_id] + 1)\n",
        "            seen.note(epoch, run_id, seen.count)\n",
        ("tests/unit/test_run_history.py",),
    ),
    Bug(
        "a run that gave way is not asked how far it had come",
        "wal_sink/spark/listener.py",
        "        gave_way = gave_way and self._handler.has_caught_up(str(event.id), str(event.runId))\n",
        "",
        ("tests/unit/test_run_history.py",),
    ),
    Bug(
        "runs that are forgotten started before every event",
        "wal_sink/flush/run_history.py",
        "                del self.events[epoch]\n",
        "                self.events[epoch] = self.events[epoch]\n",
        ("tests/unit/test_run_history.py",),
    ),
    Bug(
        "modes that are not known are let through",
        "wal_sink/spark/modes.py",
        "    elif runs_as != _PLAIN:\n",
        '    elif runs_as == "":\n',
        ("tests/unit/test_modes.py",),
    ),
    Bug(
        "a request is waited for without end",
        "wal_sink/targets/cassandra/write/send.py",
        "self._ended.get(timeout=self._timeout_s)",
        "self._ended.get()",
        ("tests/cassandra/test_target_outage.py",),
    ),
    Bug(
        "flush without looking at the checkpoint",
        "wal_sink/flush/flusher.py",
        "        checkpointed = self._checkpoint.last_commit()\n",
        "        checkpointed = max([-1, *(a.epoch for a in self._log.attempts())])\n",
    ),
    Bug(
        "manifests listed before the checkpoint is read",
        "wal_sink/flush/flusher.py",
        "        checkpointed = self._checkpoint.last_commit()\n",
        "        early = self._log.attempts()\n"
        "        checkpointed = self._checkpoint.last_commit()\n"
        "        said_once = lambda **_: (vars(self._log).pop('attempts'), early)[1]\n"
        "        self._log.attempts = said_once  # type: ignore[method-assign]\n",
    ),
    Bug(
        "first manifest wins",
        "wal_sink/protocol/choose_attempt.py",
        "    highest = max(candidate.attempt for candidate in candidates)\n    if len(candidates) > 1",
        "    highest = min(candidate.attempt for candidate in candidates)\n    if len(candidates) > 1",
    ),
    Bug(
        "manifests are not listed again after notes and events",
        "wal_sink/flush/choose_window.py",
        "        listed = {*step.attempts, *self._log.attempts(fresh=True)}\n",
        "        listed = {*step.attempts}\n",
    ),
    Bug(
        "empty epochs publish nothing",
        "wal_sink/publish/publisher.py",
        "        manifest = self._create_manifest(batch, seen)\n",
        "        if not batch.segments:\n            return None\n"
        "        manifest = self._create_manifest(batch, seen)\n",
    ),
    Bug(
        "no generation check before publishing",
        "wal_sink/publish/fencing.py",
        "    if log.highest_generation() > mine:\n",
        "    if log.highest_generation() > mine + 1_000:\n",
    ),
    Bug(
        "a run looks for a higher claim before it claims",
        "wal_sink/publish/fencing.py",
        "    claim = present or log.claim(mine, made)\n",
        "    newest = log.highest_generation()\n"
        "    claim = present or log.claim(mine, made)\n"
        "    if newest <= mine and claim.run_id == run_id:\n"
        "        return Claimed(mine, is_new=False)\n",
        ("tests/protocol/test_old_runs.py",),
    ),
    Bug(
        "the ticket of a run goes that may have to prove its epoch",
        "wal_sink/wal/forget_runs.py",
        "    oldest = min([claimed[-RUNS_KEPT], *waiting])\n",
        "    oldest = claimed[-RUNS_KEPT]\n",
        ("tests/protocol/test_old_runs.py",),
    ),
    Bug(
        "the flusher chooses from a listing that may be an old one",
        "wal_sink/flush/flusher.py",
        "        attempts = self._log.attempts(fresh=asked)\n",
        "        attempts = self._log.attempts()\n",
        ("tests/protocol/test_stale_listing.py",),
    ),
    Bug(
        "a run is fenced by a listing that may be an old one",
        "wal_sink/wal/log.py",
        "        return self._listed(paths.RUNS, paths.parse_run, fresh=fresh)\n",
        "        return self._listed(paths.RUNS, paths.parse_run)\n",
        ("tests/protocol/test_stale_listing.py",),
    ),
    Bug(
        "a run publishes by a listing of commits/ that may be an old one",
        "wal_sink/publish/publisher.py",
        "self._checkpoint.last_commit(fresh=True)",
        "self._checkpoint.last_commit()",
        ("tests/protocol/test_stale_listing.py",),
    ),
    Bug(
        "records missed in a listing that may be an old one",
        "wal_sink/flush/other_log.py",
        "            newest = self._log.newest_flushed(fresh=True)\n            refuse_missing",
        "            newest = self._log.newest_flushed()\n            refuse_missing",
        ("tests/protocol/test_stale_listing.py",),
    ),
    Bug(
        "a listing counts as fresh without the file that was made for it",
        "state_backends/local.py",
        "            if any(name == marker.name for _, name in found):\n",
        "            if marker:\n",
        ("tests/protocol/test_stale_listing.py",),
    ),
    Bug(
        "a manifest that is kept moves before its copy is durable",
        "wal_sink/wal/retain.py",
        "    log.backend.create_missing(copies)\n    log.delete(moved)\n",
        "    log.delete(moved)\n    log.backend.create_missing(copies)\n",
        ("tests/protocol/test_trim_delay.py",),
    ),
    Bug(
        "a rewind leaves the copies of records",
        "wal_sink/admin/rewind.py",
        "            query.log.delete([paths.flushed(epoch), paths.retained_record(epoch)])\n",
        "            query.log.delete([paths.flushed(epoch)])\n",
        ("tests/protocol/test_trim_delay.py",),
    ),
    Bug(
        "what another flusher keeps is swept",
        "wal_sink/wal/trim.py",
        "        untrimmed = {attempt.epoch for attempt in log.attempts()}.union(retained_paths(log))\n",
        "        untrimmed = {attempt.epoch for attempt in log.attempts()}\n",
        ("tests/protocol/test_trim_delay.py",),
    ),
    Bug(
        "what is kept stays where each pass lists what waits",
        "wal_sink/flush/flusher.py",
        "        self.trimmer.retain(window, records)\n",
        "",
        ("tests/protocol/test_costs.py", "tests/protocol/test_trim_delay.py"),
    ),
    Bug(
        "no generation check after publishing",
        "wal_sink/publish/fencing.py",
        "    if log.highest_generation() > attempt.generation:\n",
        "    if log.highest_generation() > attempt.generation + 1_000:\n",
    ),
    Bug(
        "generation taken without a ticket",
        "wal_sink/publish/fencing.py",
        "    mine = ticket.generation + 1\n",
        "    mine = log.highest_generation() + 1\n",
    ),
    Bug(
        "a manifest that comes a thousand epochs late is another history",
        "wal_sink/wal/trim.py",
        "    if record is None and _is_overtaken(log, attempt):\n",
        "    if record is None and not _is_overtaken(log, attempt):\n",
        ("tests/protocol/test_garbage.py",),
    ),
    Bug(
        "garbage is swept at the first pass only",
        "wal_sink/flush/trimmer.py",
        "        if time.monotonic() < self._swept_s + SWEEP_EVERY_S:\n",
        "        if self._swept_s > float('-inf'):\n",
        ("tests/protocol/test_garbage.py",),
    ),
    Bug(
        "a run that is told to stop loses its ticket",
        "wal_sink/wal/log.py",
        "        self.create(paths.stop(run_id), Stop(run_id=run_id))\n",
        "        self.create(paths.stop(run_id), Stop(run_id=run_id))\n"
        "        self.delete([paths.ticket(run_id)])\n",
        ("tests/protocol/test_garbage.py",),
    ),
    Bug(
        "a run that waits leaves no proof for the epoch before",
        "wal_sink/publish/publisher.py",
        "            note_kept(self._log, before, batch.run_id)  # or it waits",
        "            pass  # or it waits",
        ("tests/protocol/test_budget.py",),
    ),
    Bug(
        "a run uses after a wait what it has seen before",
        "wal_sink/publish/publisher.py",
        "            seen = self._look_again(batch)  # nothing",
        "            flushed = self._flushed_before(batch.epoch, seen.offsets)\n"
        "            seen = seen._replace(flushed=flushed)  # nothing",
        ("tests/protocol/test_budget.py",),
    ),
    Bug(
        "timestamps taken at flush",
        "wal_sink/flush/read_window.py",
        "    first_us = begun.base_us\n",
        "    import time\n\n    first_us = begun.base_us + time.perf_counter_ns() % 1_000_000\n",
    ),
    Bug(
        "timestamps fixed at publish",
        "wal_sink/protocol/ledger_updates.py",
        "                base_us=max(min(manifest.published_us, now_us), last_us + 1),\n",
        "                base_us=manifest.published_us,\n",
    ),
    Bug(
        "timestamps of a window not chained",
        "wal_sink/protocol/ledger_updates.py",
        "        last_us = epochs[-1].last_us\n",
        "        last_us = mark.last_us\n",
    ),
    Bug(
        "an unproven choice shares a window",
        "wal_sink/protocol/windows.py",
        "    return isinstance(choice, Begin) and choice.proven\n",
        "    return isinstance(choice, Begin)\n",
        ("tests/unit/test_windows.py",),
    ),
    Bug(
        "max instead of contiguous",
        "wal_sink/protocol/next_step.py",
        "    following = view.mark.flushed + 1\n",
        "    following = view.checkpointed\n",
    ),
    Bug(
        "abort deletes",
        "wal_sink/spark/data_source.py",
        "        if appended and len(appended) < len(messages):\n"
        "            discard(self._configuration.location.open_log(appended[0].query_id), appended)\n",
        "        log = self._configuration.location.open_log(appended[0].query_id)\n"
        "        log.delete(segment.path for task in appended for segment in task.segments)\n",
    ),
    Bug(
        "a batch of which a task failed leaves its segments",
        "wal_sink/spark/data_source.py",
        "        if appended and len(appended) < len(messages):\n",
        "        if False:\n",
        ("tests/protocol/test_stream_writer.py",),
    ),
    Bug(
        "a refused epoch leaves its segments",
        "wal_sink/publish/publisher.py",
        "        except (OSError, StateBackendError, WalSinkError):\n"
        "            discard(self._log, appended)\n",
        "        except (OSError, StateBackendError, WalSinkError):\n",
        ("tests/protocol/test_orphans.py",),
    ),
    Bug(
        "what an earlier commit has published is discarded",
        "wal_sink/publish/discard.py",
        "            log.delete(sorted(paths - named))\n",
        "            log.delete(sorted(paths))\n",
        ("tests/protocol/test_orphans.py",),
    ),
    Bug(
        "plain update of the ledger",
        "wal_sink/targets/cassandra/ledger.py",
        '            "WHERE query_id = ? IF flushed = ? AND begun = ?"\n        )\n'
        "        values = (window.to_text(), self._owner.query_id, window.first - 1, NOTHING)\n"
        "        return self._conditional(update, values)\n",
        '            "WHERE query_id = ?"\n        )\n'
        "        values = (window.to_text(), self._owner.query_id)\n"
        "        return self._conditional(update, values)\n",
        ("tests/cassandra/test_target_ledger.py",),
    ),
    Bug(
        "begin lost, written all the same",
        "wal_sink/flush/target_connection.py",
        "        if is_mine(outcome, window, read_back):\n",
        "        if is_mine(outcome, window, read_back) or read_back != seen:\n",
    ),
    Bug(
        "skip on failure",
        "wal_sink/flush/write_window.py",
        "                    with write.connection.session() as session:\n"
        "                        session.write(piece.plan, rows)\n",
        "                    try:\n"
        "                        with write.connection.session() as session:\n"
        "                            session.write(piece.plan, rows)\n"
        "                    except Exception:\n"
        "                        pass\n",
    ),
    Bug(
        "missing segment treated as flushed",
        "wal_sink/flush/flusher.py",
        "            self._missing.segment(gone, window)\n            return False\n",
        "            return True\n",
    ),
    Bug(
        "a look that others have overtaken is acted on",
        "wal_sink/protocol/next_step.py",
        "    if view.overtaken:  # rule 9\n        return LookAgain()\n",
        "",
        ("tests/protocol/test_stale_listing.py", "tests/protocol/test_stalled_flusher.py"),
    ),
    Bug(
        "an epoch that was flushed meanwhile is missed",
        "wal_sink/flush/missing.py",
        "        return max(self._log.flushed_epochs(fresh=True), default=-1) >= epoch\n",
        "        return False\n",
        ("tests/protocol/test_stalled_flusher.py",),
    ),
    Bug(
        "a record that is forgotten, or came late after a rewind, is asked for a missing epoch",
        "wal_sink/flush/missing.py",
        "        return max(self._log.flushed_epochs(fresh=True), default=-1) >= epoch\n",
        "        return self._log.flushed(epoch) is not None\n",
        ("tests/protocol/test_stalled_flusher.py",),
    ),
    Bug(
        "missing manifest taken for an empty epoch",
        "wal_sink/protocol/choose_attempt.py",
        "        return ManifestMissing(evidence.epoch)  # rule 12\n",
        '        return PassOver(evidence.epoch, 0, "")\n',
    ),
    Bug(
        "ledger made anew though the log knows of flushes",
        "wal_sink/protocol/next_step.py",
        "        if recorded is None and not view.rewound:  # rule 13\n",
        "        if recorded is None or recorded:  # rule 13\n",
    ),
    Bug(
        "an operator's decision is not looked at",
        "wal_sink/flush/flusher.py",
        "            epochs=[epoch for epoch in window.epochs if epoch.epoch not in given_up],\n",
        "            epochs=[epoch for epoch in window.epochs if epoch.epoch not in ()],\n",
        ("tests/protocol/test_rules.py", "tests/protocol/test_ways_out.py"),
    ),
    Bug(
        "orphans of a run that may publish swept",
        "wal_sink/protocol/orphans.py",
        '    return "fenced" if highest > writer.generation else "open"\n',
        '    return "fenced"\n',
        ("tests/unit/test_protocol_decisions.py", "tests/protocol/test_sweep_orphans.py"),
    ),
    Bug(
        "an attempt without its segments is chosen",
        "wal_sink/protocol/choose_attempt.py",
        "    candidates = [c for c in candidates if c.attempt not in evidence.swept]  # rule 18\n",
        "",
        ("tests/protocol/test_sweep_orphans.py",),
    ),
    Bug(
        "no note before orphans go",
        "wal_sink/publish/orphans.py",
        "        note_swept(log, Swept(epoch=epoch, generation=generation, run_id=left.writer.run_id))\n",
        "        list((epoch, generation))\n",
        ("tests/protocol/test_sweep_orphans.py",),
    ),
    Bug(
        "manifests are not looked at again after the note",
        "wal_sink/publish/orphans.py",
        "    gone = [path for left in waiting for path in _unnamed(log, left, published)]\n",
        "    looked = [left for left in waiting if left not in late]\n"
        "    gone = [path for left in looked for path in _unnamed(log, left, published)]\n"
        "    gone += [path for left in late for path in left.segments]\n",
        ("tests/protocol/test_sweep_orphans.py",),
    ),
    Bug(
        "segments that an operator may need are swept",
        "wal_sink/publish/orphans.py",
        "and (left.epoch > checkpointed or published.has_any(left.epoch))",
        "",
        ("tests/protocol/test_sweep_orphans.py",),
    ),
    Bug(
        "a run that starts does not count what others have left",
        "wal_sink/protocol/budget.py",
        "    return backlog.stored_bytes + left >= budget.max_bytes or (free is not None and left > free)\n",
        "    return False\n",
        ("tests/protocol/test_sweep_orphans.py",),
    ),
    Bug(
        "half-written files of killed runs stay",
        "wal_sink/publish/orphans.py",
        "        halves = log.backend.sweep_unfinished(time.monotonic() - began_s, paths.SEGMENTS)\n",
        "        halves = 0\n",
        ("tests/protocol/test_sweep_orphans.py",),
    ),
    Bug(
        "empty folders stay",
        "state_backends/local.py",
        "        self._folders.settle([*swept, *empty])\n",
        "        self._folders.settle(swept)\n",
        ("tests/protocol/test_garbage.py",),
    ),
    Bug(
        "orphans of unflushed epochs swept",
        "wal_sink/wal/trim.py",
        "for epoch, path in log.segments() if epoch <= upto and epoch not in but]",
        "for _, path in log.segments()]",
    ),
    Bug(
        "what Spark made without a sink is forgotten when it is purged",
        "wal_sink/flush/choose_window.py",
        "            without_sink=self._log.without_sink(epoch) if untold else None,\n",
        "",
        ("tests/protocol/test_repartition.py",),
    ),
    Bug(
        "a trim that comes after a rewind finds another history",
        "wal_sink/wal/trim.py",
        "    return log.flushed(epoch) is None and (not epochs or epochs[0] < epoch)\n",
        "    return log.flushed(epoch) is None and bool(epochs) and epochs[0] < epoch\n",
        ("tests/protocol/test_stalled_flusher.py",),
    ),
    Bug(
        "an epoch that is given up right before its begin is missed",
        "wal_sink/flush/missing.py",
        "        if gone.epoch in given_up_since_begun(self._log, window):\n            return\n",
        "",
        ("tests/protocol/test_stalled_flusher.py",),
    ),
    Bug(
        "a record goes whose epoch has only its manifest copied",
        "wal_sink/wal/retain.py",
        "        return isinstance(epoch, int) and paths.retained_record(epoch) in self.paths_of([epoch])\n",
        "        return epoch in self._known()\n",
        ("tests/protocol/test_trim_delay.py",),
    ),
    Bug(
        "a note goes before the one that replaces it",
        "wal_sink/publish/without_sink.py",
        "        log.backend.replace(paths.without_sink(note.epoch), note.to_json())\n",
        "        log.delete([paths.without_sink(note.epoch)])\n        log.create_without_sink(note)\n",
        ("tests/protocol/test_repartition.py",),
    ),
    Bug(
        "what was published before Spark planned the epoch anew is taken for its rows",
        "wal_sink/flush/choose_window.py",
        "any(now is None or one.manifest.offsets == now.text for one in read.values())\n",
        "bool(read)\n",
        ("tests/protocol/test_repartition.py",),
    ),
    Bug(
        "a record covers what Spark computes again after it",
        "wal_sink/protocol/coverage.py",
        "    return highest is None or all(generation <= highest for generation in generations)\n",
        "    return True\n",
        ("tests/protocol/test_repartition.py",),
    ),
    Bug(
        "tickets of starts that never published stay",
        "wal_sink/publish/orphans.py",
        "        crowded = is_crowded(log)\n",
        "        crowded = False\n",
        ("tests/protocol/test_old_runs.py",),
    ),
    Bug(
        "the ticket of a run that may publish goes with those of others",
        "wal_sink/wal/forget_runs.py",
        "owners.get(ticket.generation + 1, run) != run\n",
        "owners.get(ticket.generation + 1) != '-'\n",
        ("tests/protocol/test_old_runs.py",),
    ),
    Bug(
        "what a newer run is writing goes as half written",
        "wal_sink/publish/orphans.py",
        "sweep_unfinished(time.monotonic() - began_s, paths.SEGMENTS)",
        "sweep_unfinished(0, paths.SEGMENTS)",
        ("tests/protocol/test_sweep_orphans.py",),
    ),
    Bug(
        "options of a run that failed as it started are taken for the query's",
        "wal_sink/publish/orphans.py",
        "        claim_generation(log, run_id, options, early=True)\n",
        "        claim_generation(log, run_id, options)\n",
        ("tests/protocol/test_sweep_orphans.py",),
    ),
    Bug(
        "a decision covers an epoch that was computed again, when its manifest is lost",
        "wal_sink/progress/given_up.py",
        "    published += _generations_of_segments(log, decision.epoch)\n",
        "",
        ("tests/protocol/test_set_back.py",),
    ),
    Bug(
        "a note of a lost history stands in the place of one of this log",
        "wal_sink/wal/log.py",
        "        if (present := self.read(type(note), path)) and present.run_id != note.run_id:\n"
        "            self.delete([path])\n",
        "",
        ("tests/protocol/test_sweep_orphans.py",),
    ),
    Bug(
        "a query that cannot note what Spark made without a sink goes on",
        "wal_sink/spark/queries.py",
        "            if int(self._spark.conf.get(_RETAIN) or 0) >= BATCHES_THAT_TELL:\n",
        "            if BATCHES_THAT_TELL:\n",
        ("tests/spark/test_modes.py",),
    ),
    Bug(
        "a segment that pyarrow cannot read is not named",
        "wal_sink/wal/segment.py",
        "    except (pa.ArrowException, OSError) as error:\n",
        "    except FileExistsError as error:\n",
        ("tests/unit/test_segment.py",),
    ),
    Bug(
        "a copy of a record that is retained late is the mark of a rewind",
        "wal_sink/admin/rewind.py",
        "    floor = max(log.flushed_epochs(), default=-1)  #",
        "    floor = max(records, default=-1)  #",
        ("tests/protocol/test_stalled_flusher.py",),
    ),
    Bug(
        "a rewind leaves the last copy to a flusher that stands still",
        "wal_sink/admin/rewind.py",
        "                set_aside(query.log, self.new.last_us, objects)\n",
        "",
        ("tests/protocol/test_stalled_flusher.py",),
    ),
    Bug(
        "what is aside goes for a record from before the rewind",
        "wal_sink/wal/aside.py",
        "        if last_us[epoch] > us and not",
        "        if last_us[epoch] and not",
        ("tests/protocol/test_stalled_flusher.py",),
    ),
    Bug(
        "what a late flusher deleted is not brought back",
        "wal_sink/flush/missing.py",
        "        if mark is not None and mark.flushed < epoch and self._brought_back([epoch]):\n"
        "            return\n",
        "",
        ("tests/protocol/test_stalled_flusher.py",),
    ),
    Bug(
        "a decision outlives its epoch",
        "wal_sink/progress/given_up.py",
        "    return decision if covers else None\n",
        "    return decision\n",
        ("tests/protocol/test_set_back.py",),
    ),
    Bug(
        "a begun attempt is given up by an earlier decision",
        "wal_sink/progress/given_up.py",
        "            highest(decision), decision.offsets_digest, [begun.generation], begun.offsets_digest\n",
        '            None, "", [begun.generation], begun.offsets_digest\n',
        ("tests/protocol/test_set_back.py",),
    ),
    Bug(
        "a window taken for finished once the mark is past it",
        "wal_sink/protocol/ledger_updates.py",
        '        return "finished" if applied or mark.last == window else "overtaken"\n',
        '        return "finished"\n',
        ("tests/protocol/test_restored.py", "tests/unit/test_protocol_decisions.py"),
    ),
    Bug(
        "a window of another log taken for this one's",
        "wal_sink/flush/other_log.py",
        "                return published.digest == begun.digest\n",
        "                return True\n",
        ("tests/protocol/test_restored.py",),
    ),
    Bug(
        "a window that this log never had recorded as its own",
        "wal_sink/flush/other_log.py",
        "        if begun.epoch > checkpointed or (attempts and begun.manifest):\n",
        "        if attempts and begun.manifest:\n",
        ("tests/protocol/test_restored.py",),
    ),
    Bug(
        "what Spark made without a sink taken for what was flushed",
        "wal_sink/flush/other_log.py",
        "            return not isinstance(choice, PassOver)\n",
        "            return True\n",
        ("tests/protocol/test_restored.py",),
    ),
    Bug(
        "a rewind refuses what only another log has flushed",
        "wal_sink/admin/flushed_again.py",
        "    if past.unflushed_here(epoch):\n        return True\n",
        "",
        ("tests/protocol/test_restored.py",),
    ),
    Bug(
        "segments swept before their manifest is compared",
        "wal_sink/wal/trim.py",
        "        if segments := _segments(log, upto, untrimmed):\n",
        "        if segments := _segments(log, upto):\n",
        ("tests/protocol/test_restored.py",),
    ),
    Bug(
        "an attempt told by its generation alone",
        "wal_sink/wal/trim.py",
        "    if not record.names(found.digest, found.manifest.offsets_digest):\n",
        "    if False:\n",
        ("tests/protocol/test_restored.py",),
    ),
    Bug(
        "trim.delay is not kept",
        "wal_sink/protocol/next_step.py",
        "    upto = recorded if view.trimmable is None else min(view.trimmable, recorded)\n",
        "    upto = recorded\n",
        ("tests/protocol/test_trim_delay.py",),
    ),
    Bug(
        "records go before their delayed epochs",
        "wal_sink/wal/trim.py",
        "    return [paths.flushed(e) for e in old if first is None or e < first or e in copied]\n",
        "    return [paths.flushed(e) for e in old]\n",
        ("tests/protocol/test_trim_delay.py",),
    ),
    Bug(
        "a retyped column is not noticed under an open connection",
        "wal_sink/targets/cassandra/schema/drift.py",
        "        if version != self._version:\n",
        "        if version is None:\n",
        ("tests/cassandra/test_permanent_errors.py",),
    ),
    Bug(
        "a cut segment's rows get the timestamps of its first ones",
        "wal_sink/protocol/split_window.py",
        "        first_us = self.first_us + start - self.start\n",
        "        first_us = self.first_us\n",
        ("tests/unit/test_split_window.py", "tests/unit/test_flush_task.py"),
    ),
    Bug(
        "a job's errors are not looked at",
        "wal_sink/flush/task.py",
        "            return _placed(error)\n",
        "            _placed(error)\n",
        ("tests/unit/test_flush_task.py",),
    ),
    Bug(
        "what was gathered is not sent before the mark moves",
        "wal_sink/targets/cassandra/write/writer.py",
        "            for prepared in self._prepared.values():\n                self._send(prepared)\n",
        "",
        ("tests/cassandra/test_target_contract.py",),
    ),
    Bug(
        "what was gathered outlives an interrupted flush",
        "wal_sink/targets/cassandra/write/writer.py",
        "            prepared.buffer.take()\n",
        "            pass\n",
        ("tests/cassandra/test_target_outage.py",),
    ),
    Bug(
        "the records of a window are not durable",
        "state_backends/local.py",
        "        for folder in folders:\n            self._folders.sync_up(folder, made)\n",
        "",
        ("tests/contract/test_local_backend.py",),
    ),
    Bug(
        "a file of the log gets the mode that the umask gives",
        "state_backends/folders.py",
        "os.open(file, _NEW_FILE, stat.S_IRUSR | stat.S_IWUSR)",
        "os.open(file, _NEW_FILE, 0o666)",
        ("tests/contract/test_permissions.py",),
    ),
    Bug(
        "a folder of the log gets the mode that the umask gives",
        "state_backends/folders.py",
        "        folder.mkdir(stat.S_IRWXU | shared)\n",
        "        folder.mkdir()\n",
        ("tests/protocol/test_permissions.py",),
    ),
    Bug(
        "the metrics port takes any number of connections",
        "wal_sink/metrics/http.py",
        "        if not self._slots.acquire(blocking=False):\n",
        "        self._slots = threading.BoundedSemaphore()\n        if not self._slots.acquire():\n",
        ("tests/metrics/test_exposition.py",),
    ),
    Bug(
        "a client of the metrics port may divide its request for ever",
        "wal_sink/metrics/http.py",
        "        self._connection.settimeout(left_s)\n",
        "        self._connection.settimeout(REQUEST_S)\n        self._until_s += REQUEST_S\n",
        ("tests/metrics/test_exposition.py",),
    ),
    Bug(
        "the metrics port answers every host unasked",
        "wal_sink/metrics/server.py",
        "def expose(port: int, host: str = LOOPBACK)",
        'def expose(port: int, host: str = "0.0.0.0")',
        ("tests/metrics/test_exposition.py",),
    ),
    Bug(
        "a command takes from the log where to send the operator's password",
        "wal_sink/admin/query.py",
        "    refuse_unconfirmed(kind, logged, given, os.environ, first)\n",
        "",
        ("tests/cli/test_forged_log.py",),
    ),
    Bug(
        "a command imports a class that only the log names",
        "wal_sink/admin/query.py",
        '        refuse_unregistered(name, given.get("target"), first, is_registered=is_registered(name))\n',
        "        pass\n",
        ("tests/cli/test_forged_log.py",),
    ),
    Bug(
        "the operator's word about the host is taken for one about the port",
        "wal_sink/admin/refuse_unconfirmed.py",
        "        if name.lower() not in given\n",
        "        if not {n.lower() for n in _decided_by(kind, logged)} & given.keys()\n",
        ("tests/unit/test_refuse_unconfirmed.py",),
    ),
    Bug(
        "what lies behind another user's link is deleted",
        "state_backends/local.py",
        "        for folder in {file.parent for file in files}:\n"
        "            refuse_foreign_links(self._root, folder)\n",
        "",
        ("tests/contract/test_permissions.py",),
    ),
    Bug(
        "a plan of the log decides which table gets the rows",
        "wal_sink/targets/cassandra/schema/drift.py",
        "        if name != self._table:",
        "        if False:",
        ("tests/cli/test_operate.py::test_rows_go_to_the_table_that_the_options_name",),
    ),
    Bug(
        "texts of the log steer the terminal",
        "wal_sink/cli/output.py",
        "        return super().render_str(_lines(text), **how)\n",
        "        return super().render_str(text, **how)\n",
        ("tests/unit/test_cli_output.py",),
    ),
    Bug(
        "rows of several epochs get the timestamps of the first",
        "wal_sink/targets/cassandra/write/slice_buffer.py",
        "[_stamps(each) for each in slices]",
        "[_stamps(slices[0]._replace(batch=each.batch)) for each in slices]",
        ("tests/unit/test_cassandra_slice_buffer.py",),
    ),
    Bug(
        "what the socket had no room for is forgotten",
        "wal_sink/targets/cassandra/write/send.py",
        "            self._unsent.append(ended.statement)\n",
        "            pass\n",
        ("tests/cassandra/test_target_outage.py",),
    ),
    Bug(
        "a column that was dropped and added again is not noticed",
        "wal_sink/targets/cassandra/schema/drift.py",
        "            refuse_hidden(plan, watched.live, first_us)\n",
        "            pass\n",
        ("tests/cassandra/test_permanent_errors.py",),
    ),
    Bug(
        "it goes unseen that a table is made again under a flush job",
        "wal_sink/spark/flush_job.py",
        "                session.write(piece.plan, Slice(piece.epoch, _NO_ROWS, piece.first_us))\n",
        "                pass\n",
        ("tests/spark/test_flush_job.py",),
    ),
    Bug(
        "a request that the driver ends twice counts twice",
        "wal_sink/targets/cassandra/write/send.py",
        "        if unreported.acquire(blocking=False):\n            self._ended.put(ended)\n",
        "        self._ended.put(ended)\n",
        ("tests/cassandra/test_target_outage.py",),
    ),
    Bug(
        "a flusher is alive at the first look",
        "wal_sink/progress/heartbeat.py",
        "        return True if self._changed else None\n",
        "        return True\n",
        HEARTBEAT,
    ),
    Bug(
        "a flusher that falls silent stays alive",
        "wal_sink/progress/heartbeat.py",
        "_has_ended(report) or now_s - self._since_s >= SILENT_S:",
        "_has_ended(report):",
        HEARTBEAT,
    ),
    Bug(
        "a flusher with an old report is dead at the first look",
        "wal_sink/progress/heartbeat.py",
        "_has_ended(report) or now_s",
        "not seems_alive(report, time.time_ns() // 1_000) or now_s",
        HEARTBEAT,
    ),
    Bug(
        "no heartbeat in the middle of a request",
        "wal_sink/flush/reporter.py",
        "            if self._written is not None and self._is_due():\n",
        "            if self._written is None and self._is_due():\n",
        HEARTBEAT,
    ),
    Bug(
        "a node's own tables read at the level of the rows",
        "wal_sink/targets/cassandra/driver/connection.py",
        "        EXEC_PROFILE_DEFAULT: profile(_OF_ONE_NODE),\n",
        "        EXEC_PROFILE_DEFAULT: profile(data),\n",
        ("tests/cassandra/test_target_server.py",),
    ),
    Bug(
        "a node that went down is still a first replica",
        "wal_sink/targets/cassandra/write/replicas.py",
        " or up != before[2]:\n",
        ":\n",
        ("tests/unit/test_cassandra_replicas.py",),
    ),
    Bug(
        "the ledger's table has an id by chance",
        "wal_sink/targets/cassandra/schema/ledger_table.py",
        "    return uuid5(_IDS, str(name))\n",
        '    return __import__("uuid").uuid4()\n',
        ("tests/unit/test_cassandra_fitness.py",),
    ),
    Bug(
        "tasks do not know what indexes refuse",
        "wal_sink/targets/cassandra/check.py",
        "    refuse_indexed(batch, result, plan, planned_rules(plan))\n",
        "",
        INDEXES,
    ),
    Bug(
        "a vector of zeros passes",
        "wal_sink/targets/cassandra/types/index_rule.py",
        "    large = pc.greater_equal(amounts, real(LEAST))\n",
        "    large = pc.greater_equal(amounts, real(0.0))\n",
        INDEXES,
    ),
    Bug(
        "NaN passes for a small number",
        "wal_sink/targets/cassandra/types/index_rule.py",
        "    beyond = pc.invert(pc.less_equal(amounts, real(MOST)))  # NaN is not less\n",
        "    beyond = pc.greater(amounts, real(MOST))\n",
        INDEXES,
    ),
    Bug(
        "an index that is made later goes unseen",
        "wal_sink/targets/cassandra/schema/drift.py",
        "        if watched.live.indexes != before.indexes:\n",
        "        if watched.live.id != before.id:\n",
        ("tests/cassandra/test_target_indexes.py",),
    ),
    Bug(
        "a row that replicas fail at is an outage for ever",
        "wal_sink/targets/cassandra/write/send.py",
        "            raise refusal(row, refused.error)\n",
        "            pass\n",
        ("tests/cassandra/test_target_indexes.py",),
    ),
    Bug(
        "a failure of every row is blamed on one",
        "wal_sink/targets/cassandra/write/send.py",
        "        if is_refused(refused.error) or refused.others_are_taken or self._takes_others():\n",
        "        if True:\n",
        ("tests/cassandra/test_target_indexes.py",),
    ),
    Bug(
        "a part of a refused request is not sent",
        "wal_sink/targets/cassandra/write/refused_row.py",
        "        waiting = [*parts, *waiting]\n",
        "        waiting = parts\n",
        INDEXES,
    ),
    Bug(
        "tablets looked for in the keyspace of the rows",
        "wal_sink/targets/cassandra/schema/fitness.py",
        "    _refuse_tablets(server, options.ledger.keyspace)\n",
        "    _refuse_tablets(server, options.keyspace)\n",
        ("tests/unit/test_cassandra_fitness.py",),
    ),
    Bug(
        "a server that takes no reads at SERIAL is written to",
        "wal_sink/targets/cassandra/schema/inspection.py",
        "    refuse_unfit(server, options)\n",
        "",
        ("tests/cassandra/test_target_server.py",),
    ),
    Bug(
        "the flusher's clock is not bounded",
        "wal_sink/protocol/ledger_updates.py",
        "    return min(now_us, median_low(told_us) + CLOCKS_DIFFER_US) if told_us else now_us\n",
        "    return now_us\n",
    ),
    Bug(
        "a single node may set the clock",
        "wal_sink/flush/clocks.py",
        "_ASK_AGAIN = 2\n",
        "_ASK_AGAIN = 0\n",
    ),
    Bug(
        "a rewind brings timestamps back that were left behind",
        "wal_sink/protocol/rewind.py",
        "        return self.first_us <= us <= self.last_us and (epoch is None or epoch <= self.to)\n",
        "        return False\n",
        ("tests/protocol/test_future_timestamps.py",),
    ),
    Bug(
        "a reset forgets timestamps of the present",
        "wal_sink/protocol/rewind.py",
        "        return self.first_us <= us <= self.last_us and (epoch is None or epoch <= self.to)\n",
        "        return True\n",
        ("tests/protocol/test_future_timestamps.py",),
    ),
    Bug(
        "the first row of a key wins in PostgreSQL",
        "wal_sink/targets/postgresql/copy.py",
        "{quote(ORDINAL)} DESC",
        "{quote(ORDINAL)}",
        ("tests/postgresql/test_upsert.py",),
    ),
    Bug(
        "PostgreSQL may forget what it has acknowledged",
        "wal_sink/targets/postgresql/connection.py",
        "WHEN 'off' THEN 'on'",
        "WHEN 'off' THEN 'off'",
        ("tests/postgresql/test_faults.py",),
    ),
    Bug(
        "a silent PostgreSQL is waited for",
        "wal_sink/targets/postgresql/connection.py",
        "            if since is not None and time.monotonic() - since > self.request_timeout:\n",
        "            if False:\n",
        ("tests/postgresql/test_faults.py",),
    ),
    Bug(
        "PostgreSQL's password stays in the URI",
        "wal_sink/targets/postgresql/options.py",
        "{user}{at}{hosts}",
        "{login}{at}{hosts}",
        ("tests/unit/test_postgresql_options.py",),
    ),
    Bug(
        "a text with NUL goes to PostgreSQL",
        "wal_sink/targets/postgresql/check.py",
        '        pc.match_substring(values, "\\0"),\n',
        '        pc.match_substring(values, "\\0never"),\n',
        ("tests/postgresql/test_types.py",),
    ),
    Bug(
        "a delete is sent as an upsert",
        "wal_sink/targets/cassandra/write/statements.py",
        "    return np.where(deletes, given, _UPSERT)\n",
        "    return np.where(deletes, _UPSERT, _UPSERT)\n",
        DELETES,
    ),
    Bug(
        "a delete of a range takes the whole partition",
        "wal_sink/targets/cassandra/write/statements.py",
        "*clustering_of(self._plan)[:kind]",
        "*clustering_of(self._plan)[: kind and None]",
        DELETES,
    ),
    Bug(
        "a delete and an upsert of one slice have each other's timestamps",
        "wal_sink/targets/cassandra/write/statements.py",
        "Stamped(kept, rows.stamps[chosen])",
        "Stamped(kept, rows.stamps[: kept.num_rows])",
        DELETES,
    ),
    Bug(
        "rows that were divided by their statements go with the keys of others",
        "wal_sink/targets/cassandra/write/requests.py",
        "        order = places if order is None else places[order]\n",
        "        order = places if order is None else order\n",
        DELETES,
    ),
    Bug(
        "an unknown operation is an upsert",
        "wal_sink/targets/values/operations.py",
        "meant.get(each) for each in",
        'meant.get(each, "upsert") for each in',
        DELETES,
    ),
    Bug(
        "a delete with a gap in its clustering columns takes a range",
        "wal_sink/targets/cassandra/check.py",
        "    _refuse_gaps(rows, table)\n",
        "",
        DELETES,
    ),
    Bug(
        "an upsert may lack clustering columns where deletes may",
        "wal_sink/targets/values/operations.py",
        "    return flags if deletes is None else pc.if_else(deletes, FALSE, flags)\n",
        "    return flags if deletes is None else pc.if_else(flags, FALSE, flags)\n",
        DELETES,
    ),
    Bug(
        "what cannot delete takes a delete for a row",
        "wal_sink/configuration.py",
        "        refuse_undeclared(given, target.name, target.options_type)\n",
        "",
        DELETES,
    ),
    Bug(
        "a plan without deletes gets another key",
        "wal_sink/targets/operations.py",
        "    return {OPTION: column, WORDS_OPTION: _text(words)} if column else {}\n",
        "    return {OPTION: column, WORDS_OPTION: _text(words)}\n",
        DELETES,
    ),
    Bug(
        "a row in PostgreSQL outlives its delete",
        "wal_sink/targets/postgresql/copy.py",
        " AS last WHERE NOT {quote(DELETED)}",
        " AS last",
        ("tests/postgresql/test_deletes.py",),
    ),
    Bug(
        "a row in PostgreSQL that comes again keeps what it had before its delete",
        "wal_sink/targets/postgresql/copy.py",
        "        if pc.any(deletes).as_py():\n",
        "        if not pc.any(deletes).as_py():\n",
        ("tests/postgresql/test_deletes.py",),
    ),
    Bug(
        "rows in PostgreSQL whose key has no delete are deleted",
        "wal_sink/targets/postgresql/copy.py",
        " FROM {staged} WHERE {quote(DELETED)}) AS gone",
        " FROM {staged}) AS gone",
        ("tests/postgresql/test_deletes.py",),
    ),
    Bug(
        "each of several targets chooses among attempts by itself",
        "wal_sink/flush/choose_window.py",
        "        return self._log.settle_chosen(chosen)\n",
        "        return True\n",
        ("tests/protocol/test_several_targets.py",),
    ),
    Bug(
        "what another target's flusher has chosen is not looked at",
        "wal_sink/flush/choose_window.py",
        "        if self._log.several and (chosen := self._log.chosen(step.epoch)) is not None:\n",
        "        if False and (chosen := self._log.chosen(step.epoch)) is not None:\n",
        ("tests/protocol/test_several_targets.py",),
    ),
    Bug(
        "a choice for several targets is written over another one",
        "wal_sink/wal/log.py",
        "        return all(self.chosen(each.epoch) == each for each in chosen)\n",
        "        return True\n",
        ("tests/protocol/test_several_targets.py",),
    ),
    Bug(
        "an epoch is trimmed when the first of several targets has it",
        "wal_sink/wal/trim_delay.py",
        "            limit = mine if limit is None else min(limit, mine)\n",
        "            limit = mine if limit is None else max(limit, mine)\n",
        ("tests/protocol/test_several_targets.py",),
    ),
    Bug(
        "the sweep of one target deletes what another one lacks",
        "wal_sink/flush/trimmer.py",
        "                trimmable = self._shared.trimmable(self._log, ())\n",
        "                trimmable = None\n",
        ("tests/protocol/test_several_targets.py",),
    ),
    Bug(
        "what only one of several targets has is published again",
        "wal_sink/publish/publisher.py",
        "        mark = newest_anywhere(self._log)\n",
        "        mark = self._log.newest_flushed()\n",
        ("tests/protocol/test_several_targets.py",),
    ),
    Bug(
        "epochs are trimmed while a target is only announced",
        "wal_sink/wal/attached.py",
        '        if state is not None and state.verb != "detached":\n            yield',
        '        if state is not None and state.verb == "attached":\n            yield',
        ("tests/protocol/test_several_targets.py",),
    ),
    Bug(
        "the budget forgets what only one target lacks",
        "wal_sink/publish/publisher.py",
        "        behind = flushed_epoch(self._log) if self._log.several else flushed\n",
        "        behind = flushed\n",
        ("tests/protocol/test_detached_targets.py",),
    ),
    Bug(
        "rows of a log of several targets are written as Spark gave them",
        "wal_sink/flush/cast.py",
        "    if not log.several or not rows.batch.num_rows:\n",
        "    if True:\n",
        ("tests/protocol/test_several_targets.py",),
    ),
    Bug(
        "what one target gives up is taken from the others",
        "wal_sink/admin/skip.py",
        "        if not self.query.log.several:\n",
        "        if True:\n",
        ("tests/protocol/test_detached_targets.py",),
    ),
)
