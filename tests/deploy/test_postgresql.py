"""PostgreSQL with a promoted standby, a full disk, or a pooler."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.protocol.engine import SCHEMA, World
from tests.sql.stores import Postgresql
from tests.support.deploy_table import Counted, Row
from tests.support.operators import set_mark
from tests.support.small_disk import mounted
from wal_sink.demo.postgresql import REPLICATES, USER, Server, Standby, unprivileged
from wal_sink.demo.server import choose_port, ports_are_free
from wal_sink.errors import LedgerBehindLog, OptionError, WalSinkError
from wal_sink.protocol.retention import Retention
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.testing.micro_batches import PlayedQuery, flush_with_retries, in_memory

pytestmark = [pytest.mark.test_all, pytest.mark.postgresql, pytest.mark.timeout(300)]


class FailoverWorld(World):
    """A query whose target has two hosts, of which only one accepts writes."""

    adds = True

    def __init__(self, primary: Server, standby: Standby) -> None:
        self.primary, self.standby = primary, standby
        primary.execute("CREATE TABLE rows (k text, v bigint)")
        uri = standby.uri_of_both
        options = PostgresqlOptions(uri=uri, table="rows", lock_timeout=0.5, request_timeout=3)
        super().__init__(*in_memory(), PostgresqlTarget(options))

    def visible(self) -> list[tuple[str, int]]:
        return self.standby.execute("SELECT k, v FROM rows")

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        if self.standby.running:
            self.standby.resume()
        self.standby.start()
        self.standby.promote()


@contextmanager
def pair(**settings: object) -> Iterator[FailoverWorld]:
    """Start a server and a standby that has caught up."""
    with Server({**REPLICATES, **settings}) as primary, Standby(primary) as standby:
        world = FailoverWorld(primary, standby)
        standby.await_caught_up()
        yield world
        world.end_sessions()


def batches(world: World, first: int, last: int) -> None:
    """Complete epochs with one row each."""
    world.run().batches(*([(f"k{epoch}", epoch)] for epoch in range(first, last + 1)))


def test_promoted_synchronous_standby_has_each_row_once(counted: Counted) -> None:
    """The standby has all flushed epochs, and the window whose COMMIT was not acknowledged."""
    with pair(synchronous_commit="remote_apply") as world:
        world.primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        world.primary.execute("SELECT pg_reload_conf()")
        batches(world, 0, 2)
        world.flush()
        world.standby.pause()  # the primary makes the next COMMIT durable, and does not acknowledge it
        batches(world, 3, 4)
        with pytest.raises(WalSinkError) as unanswered:
            world.flush()
        assert unanswered.value.transient
        world.fail_over()
        flush_with_retries(world.flusher())
        version = world.standby.title.rpartition(" ")[2]
        expected = sorted(world.expected().items())
        assert sorted(world.visible()) == expected
        row = Row("PostgreSQL, synchronous standby", version, "promoted in mid-COMMIT", 5, 0)
        counted(row._replace(found=len(world.visible())))


@pytest.mark.parametrize("retained", [False, True], ids=["trimmed", "retained"])
def test_promoted_asynchronous_standby_gets_its_epochs_from_the_log(
    counted: Counted, *, retained: bool
) -> None:
    """Rows and ledger row of the standby lag. If the log lacks the epochs, the flush stops until `set-mark`.

    A restored backup is the same case.
    """
    with pair() as world:
        hour_us = 3_600_000_000
        world.retention = Retention(us=hour_us if retained else 0, bytes=1 << 30)
        batches(world, 0, 2)
        world.flush()
        world.standby.await_caught_up()
        world.standby.stop()
        batches(world, 3, 4)
        world.flush()
        world.fail_over()
        assert sorted(world.visible()) == [("k0", 0), ("k1", 1), ("k2", 2)]
        if not retained:
            with pytest.raises(LedgerBehindLog, match="set-mark CHECKPOINT --to 4"):
                world.flush()
            set_mark(world.flusher().pipeline, 4)
        batches(world, 5, 5)
        flush_with_retries(world.flusher())
        present = sorted(world.visible())
        kept = [epoch for epoch in range(6) if retained or epoch not in (3, 4)]
        assert present == [(f"k{epoch}", epoch) for epoch in kept]
        title = f"PostgreSQL, asynchronous standby, {'retained' if retained else 'trimmed'} log"
        version = world.standby.title.rpartition(" ")[2]
        counted(Row(title, version, "promoted with a lag of two epochs", len(kept), len(present)))


def test_flush_waits_for_space_on_a_full_disk(counted: Counted) -> None:
    """The database rolls the window back. With free space it is written once."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system to fill; CI runs as root")
    with Server() as server, mounted(server.folder / "disk", "8m") as disk:
        shutil.chown(disk.folder, "postgres")
        server.execute(f"CREATE TABLESPACE small LOCATION '{disk.folder}'")
        store = Postgresql(server, "public")
        store.execute("CREATE TABLE t (k text, v bigint) TABLESPACE small")
        query = PlayedQuery(store.target(), SCHEMA)
        query.run().flushed_batches([("k0", 0)], [("k1", 1)])
        disk.fill(0)
        large = secrets.token_hex(100_000)
        query.run().batches(*([(f"{large}{epoch}", epoch)] for epoch in (2, 3)))
        with pytest.raises(WalSinkError, match="could not extend file") as full:
            query.flush()
        assert full.value.transient
        assert store.execute("SELECT v FROM t ORDER BY v") == [(0,), (1,)]
        disk.free()
        flush_with_retries(query.flusher())
        rows = store.execute("SELECT k, v FROM t ORDER BY v")
        assert rows == [("k0", 0), ("k1", 1), (f"{large}2", 2), (f"{large}3", 3)]
        version = server.title.rpartition(" ")[2]
        counted(Row("PostgreSQL", version, "disk full in mid-window", 4, len(rows)))
        query.end_sessions()


# --- a pooler -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_postgresql_pooler_is_refused(mode: str) -> None:
    """Plan and session refuse the pooler. The server itself is accepted."""
    with Server() as server, pgbouncer(server, mode) as port:
        server.execute("CREATE TABLE rows (k text, v bigint)")
        uri = server.uri.replace(f":{server.port}/", f":{port}/")
        target = PostgresqlTarget(PostgresqlOptions(uri=uri, table="rows"))
        frame = World(*in_memory()).frame([("a", 1)])
        acts: list[Callable[[], object]] = [
            lambda: target.plan(frame.schema, "key"),
            lambda: target.connect("query").read(),
        ]
        for act in acts:
            with pytest.raises(OptionError, match=r"(?s)leads to a pooler.*Name the server itself"):
                act()
        direct = PostgresqlTarget(PostgresqlOptions(uri=server.uri, table="rows"))
        direct.plan(frame.schema, "key")


@contextmanager
def pgbouncer(server: Server, mode: str) -> Iterator[int]:
    """Run PgBouncer before a server; provide its port."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    assert program, "install pgbouncer: on Debian and Ubuntu `apt-get install pgbouncer`"
    port, folder = (
        choose_port("127.0.0.1"),
        server.folder,
    )  # the user of the server can read the folder
    (folder / "users").write_text(f'"{USER}" "{server.password}"\n')
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={server.host} port={server.port}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = scram-sha-256\n"
        f"auth_file = {folder / 'users'}\npool_mode = {mode}\nunix_socket_dir =\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    process = subprocess.Popen(
        list(map(str, unprivileged([program, "--quiet", config]))), stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while ports_are_free("127.0.0.1", port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()
