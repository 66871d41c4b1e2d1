"""The imports of each kind of process of a query.

Spark makes a data source in one Python worker, makes its writer in a second, runs tasks in others, and
commits in one more. A short job starts all of them, so their imports are a part of its duration.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructType

import wal_sink
from tests.support.programs import ran
from wal_sink.configuration import configure
from wal_sink.model import paths
from wal_sink.model.manifest import Execution, Task
from wal_sink.model.plan import Agreed, Column, Plan
from wal_sink.model.spark_types import canonical
from wal_sink.publish.plans import inputs_key_of
from wal_sink.spark.data_source import Message, WalSinkDataSource, WalSinkStreamWriter
from wal_sink.spark.internals import python_worker

NESTED = MapType(StringType(), ArrayType(DecimalType(9, 0)))
SCHEMA = StructType().add("id", "long").add("text", "string").add("nested", NESTED)
VALUES = {"id": [1], "text": ["a"], "nested": [[("::1", [Decimal(1)])]]}
ROWS = pa.record_batch(VALUES, python_worker.arrow_schema(SCHEMA))
TASK = Task(Execution("q", "r", 0), partition=0, task_attempt=0)
OWN = {"wal_sink", "state_backends"}


class Entrance(NamedTuple):
    """The work of a kind of process."""

    before: str
    """Modules that Spark has imported before."""
    call: str
    """The code that Spark calls; `given` has the objects that Spark sends."""
    may: str
    """The packages of others that the code may import."""


ENTRANCES = {
    "source": Entrance(
        "pyspark.sql.worker.create_data_source",
        "given['source'](given['options'])",
        "pyspark pyarrow numpy msgspec typing_extensions",
    ),
    "planner": Entrance(
        "pyspark.sql.worker.write_into_data_source, pyarrow",
        "given['source'](given['options']).streamWriter(given['schema'], False)",
        "pyspark msgspec typing_extensions",
    ),
    "task": Entrance(
        "pyspark.worker, pyarrow",
        "given['writer'].micro_batch.append([given['rows']], given['task'])",
        "pyspark pyarrow numpy msgspec typing_extensions",
    ),
    "commit": Entrance(
        "pyspark.sql.worker.python_streaming_sink_runner",
        "source = given['source'](given['options'])\n"
        "source.streamWriter(given['schema'], False).commit([given['message']], 0)",
        "pyspark pyarrow numpy msgspec typing_extensions",
    ),
    "driver": Entrance(
        "pyspark.sql",
        "__import__('wal_sink').register",
        "pyspark py4j pyarrow numpy msgspec typing_extensions tenacity",
    ),
}
"""pyarrow imports numpy. No process imports fsspec, typer or prometheus_client, Python's HTTP server, or a
database's driver, which the flusher loads as a query starts. Tenacity imports asyncio, so only the process of
the flusher imports it."""

CHILD = """
import pickle, sys
import {before}
already = set(sys.modules)
given = pickle.loads(bytes.fromhex(sys.argv[1]))
{call}
print(*(name for name in set(sys.modules) - already if sys.modules[name].__spec__))
"""


@pytest.fixture
def pickled(tmp_path: Path) -> dict[str, dict[str, object]]:
    """Return the objects that Spark sends to each process; the plan of the query is in its log."""
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": TASK.execution.query_id}))
    (checkpoint / "offsets" / "0").write_text('v1\n{"batchTimestampMs":0,"conf":{}}\n{"offset":0}')
    options = {
        "checkpointLocation": str(checkpoint),
        "keyspace": "shop",
        "table": "orders",
        "cassandra.contactPoints": "127.0.0.1",
        "cassandra.port": "1",  # nothing listens there
    }
    configuration = configure(options)
    log = configuration.location.open_log(TASK.execution.query_id)
    (destination,) = configuration.destinations
    key = inputs_key_of(configuration, ROWS.schema)
    columns = (
        Column(name="id", source="int64", type="bigint", role="partition"),
        Column(name="text", source="string", type="text", role="regular"),
        Column(
            name="nested",
            source=str(canonical(ROWS.schema.field("nested").type)),
            type="map<inet, frozen<list<varint>>>",
            role="regular",
        ),
    )
    details = {"keyspace": "shop", "table": "orders"}
    plan = Plan(key=key, target="cassandra", table="shop.orders", columns=columns, details=details)
    log.create(paths.AGREED, Agreed(key=key, plans={destination.name: plan}).to_json())
    source = {"source": WalSinkDataSource, "options": options, "schema": SCHEMA}
    writer = WalSinkDataSource(options).streamWriter(SCHEMA, overwrite=False)
    assert isinstance(writer, WalSinkStreamWriter)
    message = Message(writer.micro_batch.append([ROWS], TASK), writer.micro_batch.plans_key)
    return {
        "source": source,
        "planner": source,
        "task": {"writer": writer, "rows": ROWS, "task": TASK},
        "commit": {**source, "message": message},
        "driver": {},
    }


@pytest.mark.parametrize("name", ENTRANCES)
def test_process_imports_only_the_packages_of_its_row(
    name: str, pickled: dict[str, dict[str, object]]
) -> None:
    """A process of its own does the work."""
    entrance = ENTRANCES[name]
    program = CHILD.format(before=entrance.before, call=entrance.call)
    done = ran([sys.executable, "-c", program, pickle.dumps(pickled[name]).hex()])
    assert done.returncode == 0, done.stderr
    imported = {module.partition(".")[0] for module in done.stdout.split()}
    assert "wal_sink" in imported
    assert imported - sys.stdlib_module_names - OWN - set(entrance.may.split()) == set()
    unwanted = {"wsgiref"} if name == "driver" else {"wsgiref", "asyncio"}
    assert imported & unwanted == set()


UNUSED = {"cassandra", "rich", "typer", "click", "sqlglot", "prometheus_client", "pandas"}
"""Packages that executors do not need for these targets."""


@pytest.mark.parametrize("name", ["kafka", "delta", "postgresql"])
def test_executor_imports_only_the_client_of_its_target(name: str) -> None:
    """The imports are those of a task and of a flush job that connects."""
    modules = sorted(
        f"wal_sink.targets.{name}.{path.stem}"
        for path in (Path(wal_sink.__file__).parent / "targets" / name).glob("*.py")
        if path.stem != "__init__"
    )
    program = f"import {', '.join(modules)}, wal_sink.spark.data_source, wal_sink.flush.write\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    tops = {module.partition(".")[0] for module in done.stdout.split()}
    assert "wal_sink" in tops
    assert tops & UNUSED == set()
