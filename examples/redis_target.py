"""A target of your own, whole: Redis, a key-value store. A window and its ledger row are one transaction.

Use it as `.option("target", "redis_target:RedisTarget").option("redis.key", "orders")`.
"""

import json
from typing import Annotated, Any

import pyarrow as pa
import redis
from msgspec import field
from redis.backoff import NoBackoff
from redis.retry import Retry

from wal_sink import targets
from wal_sink.errors import OptionError, SchemaMismatch
from wal_sink.options import CONNECTS, SHAPES, about

PLAIN = (pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64())
DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
FINISH = r"""
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
for slice = 3, #ARGV do
  for row in ARGV[slice]:gmatch('[^\n]+') do redis.call('RPUSH', KEYS[2], row) end
end
redis.call('SET', KEYS[1], ARGV[2])
return 1"""  # where Redis refuses the rows, the script ends there


class RedisOptions(targets.Options, frozen=True, kw_only=True):
    url: Annotated[str, about("address of the server", CONNECTS)] = field(name="redis.url")
    key: Annotated[str, about("key of the list of rows", SHAPES)] = field(name="redis.key")


class RedisTarget(targets.Target):
    """Adds rows, each as JSON, to the end of a list."""

    interface, name, options_type = 2, "redis", RedisOptions
    transient = (redis.ConnectionError, redis.TimeoutError)

    def client(self) -> Any:  # it waits ten seconds at most, and repeats nothing by itself
        retry = Retry(NoBackoff(), 0)
        return redis.Redis.from_url(self.options.url, socket_timeout=10, retry=retry)

    def plan(self, schema: pa.Schema, key: str) -> targets.Plan:
        with self.client() as client:
            settings = {name: client.config_get(name)[name] for name in DURABLE}
        if settings != DURABLE:
            raise SchemaMismatch(
                f"Redis forgets what it has answered: {settings}.", f"Set {DURABLE}."
            )
        if others := [column.name for column in schema if column.type not in PLAIN]:
            raise SchemaMismatch(f"JSON has no type for {', '.join(others)}.", "Cast to string.")
        columns = tuple(map(targets.Column.like, schema))
        return targets.Plan(key=key, target=self.name, table=self.options.key, columns=columns)

    def check(self, batch: pa.RecordBatch, plan: targets.Plan) -> pa.RecordBatch:
        return batch  # every value of these types has its JSON, for Python's reader also NaN

    def connect(self, query_id: str) -> targets.TransactionalSession:
        return RedisSession(self, query_id)


class RedisSession(targets.TransactionalSession):
    def __init__(self, target: RedisTarget, query_id: str) -> None:
        self.client, self.list = target.client(), target.options.key
        self.ledger = f"{self.list}:ledger:{query_id}"
        self.rows: list[str] = []  # of the window, a text a slice: they leave with its `finish`

    def read(self) -> targets.LedgerRow | None:
        cells = self.client.get(self.ledger)
        return cells and targets.LedgerRow.from_cells(json.loads(cells), self.ledger)

    def write(self, plan: targets.Plan, rows: targets.RowSlice) -> None:
        if plan.table != self.list:
            raise OptionError(f"These rows are for the list {plan.table}.", "Set redis.key back.")
        self.rows.append("\n".join(map(json.dumps, rows.batch.to_pylist())))

    def finish(self, current: targets.LedgerRow | None, new: targets.LedgerRow) -> targets.Outcome:
        rows, self.rows = self.rows, []
        cells = [json.dumps(row.cells) if row else "" for row in (current, new)]
        try:
            done = self.client.eval(FINISH, 2, self.ledger, self.list, *cells, *rows)
        except RedisTarget.transient:
            return targets.Outcome.UNKNOWN
        return targets.Outcome.APPLIED if done else targets.Outcome.CONFLICT

    def close(self) -> None:
        self.client.close()
