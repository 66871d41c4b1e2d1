"""A target of your own, whole: Redis, a key-value store. A window and its ledger row are one transaction.

Use it as `.option("target", "redis_target:RedisTarget").option("redis.key", "orders")`.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import redis
from msgspec import Meta
from redis.backoff import NoBackoff
from redis.retry import Retry

from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.options import CONNECTS
from wal_sink.targets import (
    Column,
    Delivery,
    ErrorClass,
    LedgerState,
    Options,
    Outcome,
    Owner,
    Plan,
    Slice,
    Target,
    TransactionalSession,
    Window,
)

PLAIN = (pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64())
LOST = (redis.ConnectionError, redis.TimeoutError)
DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
COMMIT = r"""
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
for slice = 3, #ARGV do
  for row in ARGV[slice]:gmatch('[^\n]+') do redis.call('RPUSH', KEYS[2], row) end
end
redis.call('SET', KEYS[1], ARGV[2])
return 1"""  # where Redis refuses the rows, it ends there


class RedisOptions(Options, frozen=True, kw_only=True):
    url: Annotated[str, Meta(description="address of the server", extra=CONNECTS)] = msgspec.field(
        name="redis.url", default="redis://127.0.0.1:6379"
    )
    key: Annotated[str, Meta(description="key of the list of rows")] = msgspec.field(
        name="redis.key"
    )


class RedisTarget(Target):
    """Adds rows, each as JSON, to the end of a list."""

    name = "redis"
    options_type = RedisOptions
    delivery = Delivery.TRANSACTIONAL

    def __init__(self, options: RedisOptions) -> None:
        self.options = options

    @property
    def shape(self) -> dict[str, str]:  # a plan is kept for each schema, and each of these
        return {"redis.key": self.options.key}

    def client(self) -> Any:  # that waits ten seconds at most, and repeats nothing by itself
        return redis.Redis.from_url(
            self.options.url, socket_timeout=10, retry=Retry(NoBackoff(), 0)
        )

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        with self.client() as client:
            there = {name: client.config_get(name)[name] for name in DURABLE}
        if there != DURABLE:
            raise SchemaMismatch(
                f"This Redis forgets what it has answered: {there}.", f"Set {DURABLE}."
            )
        if strange := [field.name for field in schema if field.type not in PLAIN]:
            raise SchemaMismatch(f"JSON has no type for {', '.join(strange)}.", "Cast to string.")
        columns = [
            Column(name=f.name, source=str(f.type), type="json", role="regular") for f in schema
        ]
        return Plan(key=key, target=self.name, table=self.options.key, columns=tuple(columns))

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        return batch  # every value of these types has its JSON, for Python's reader also NaN

    def connect(self, owner: Owner) -> TransactionalSession:
        return RedisSession(self, owner)

    def classify(self, error: Exception) -> ErrorClass:
        return "retry" if isinstance(error, LOST) else "fatal"


class RedisSession(TransactionalSession):
    def __init__(self, target: RedisTarget, owner: Owner) -> None:
        self.client, self.list = target.client(), target.options.key
        self.ledger = f"{self.list}:ledger:{owner.query_id}"
        self.window: Window | None = None
        self.rows: list[str] = []  # of the window, a text a slice: they leave with its commit

    def read_ledger(self) -> LedgerState | None:
        found = self.client.get(self.ledger)
        return None if found is None else LedgerState.from_json(found, self.ledger)

    def start(self, window: Window) -> None:
        self.window, self.rows = window, []

    def write(self, plan: Plan, rows: Slice) -> None:
        window, self.window = self.window, None  # an error leaves nothing to commit
        if plan.table != self.list:
            raise OptionError(
                f"These rows are for {plan.table}, not {self.list}", "Set redis.key back."
            )
        self.rows.append("\n".join(map(json.dumps, rows.batch.to_pylist())))
        self.window = window

    def commit(self, seen: LedgerState, new: LedgerState) -> Outcome:
        if seen.begun != self.window:
            return Outcome.CONFLICT
        return self.compare_and_set(seen, new, self.rows)

    def compare_and_set(
        self, seen: LedgerState | None, new: LedgerState, rows: Sequence[str] = ()
    ) -> Outcome:
        before = seen.to_json() if seen else ""
        try:
            done = self.client.eval(COMMIT, 2, self.ledger, self.list, before, new.to_json(), *rows)
        except LOST:
            return Outcome.UNKNOWN
        return Outcome.APPLIED if done else Outcome.CONFLICT

    def close(self) -> None:
        self.window, self.rows = None, []
        self.client.close()
