"""The most common mistakes: the last lines on the terminal are those of `docs/mistakes.md`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import wal_sink
from tests.spark.conftest import Shop
from tests.spark.tables import Table
from tests.support.programs import ran
from tests.support.transcripts import transcript
from wal_sink import errors
from wal_sink.demo.cassandra import Node

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(300)]


@pytest.fixture
def shop(spark: SparkSession, cassandra: Node, keyspace: str, tmp_path: Path) -> Shop:
    """Return the parts of a query without a mistake."""
    shop = Shop(spark, Table(cassandra, keyspace, "orders"), tmp_path)
    shop.add_files(rows=10)
    return shop


def wrong_keyspace(shop: Shop) -> None:
    shop.run(keyspace="shpo")


def missing_table(shop: Shop) -> None:
    shop.run(table="order")


def wrong_type(shop: Shop) -> None:
    shop.run(shop.rows.selectExpr("key", "text AS id", "id > 3 AS text"))


def null_key(shop: Shop) -> None:
    shop.run(shop.rows.selectExpr("IF(id = 7, NULL, key) AS key", "id", "text"))


def no_folder_for_the_log(shop: Shop) -> None:
    (shop.folder / "file").write_text("not a folder", encoding="utf-8")
    shop.run(**{"wal.location": str(shop.folder / "file" / "log")})


def copied_checkpoint(shop: Shop) -> None:
    shop.run()
    shutil.copytree(shop.folder / "checkpoint", shop.folder / "copy")
    shop.add_files(rows=10)
    shop.run(checkpointLocation=str(shop.folder / "copy"))


def update_mode(shop: Shop) -> None:
    counts = shop.writer(shop.rows.groupBy("text").count()).outputMode("update")
    counts.trigger(availableNow=True).start().awaitTermination()


def unknown_option(shop: Shop) -> None:
    shop.run(nulls="write")


MISTAKES: list[Callable[[Shop], None]] = [
    wrong_keyspace,
    missing_table,
    wrong_type,
    null_key,
    no_folder_for_the_log,
    copied_checkpoint,
    update_mode,
    unknown_option,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_printed_traceback_ends_with_the_error_of_the_sink(
    shop: Shop, mistake: Callable[[Shop], None]
) -> None:
    """Nothing follows the remedy, and the traceback has no frame of Java."""
    with pytest.raises(errors.WalSinkError) as caught, wal_sink.register(shop.spark):
        mistake(shop)
    printed = "".join(traceback.format_exception(caught.value))
    assert "org.apache.spark" not in printed
    last = printed[printed.rindex("\nwal_sink.errors.") + 1 :]
    assert plain(last, shop) == transcript(mistake.__name__.replace("_", " "))


def test_changed_log_location_is_refused_without_a_batch(shop: Shop) -> None:
    """Epochs may be pending in the log of the checkpoint, and this block does not flush them."""
    with wal_sink.register(shop.spark):
        shop.run()
    with (
        pytest.raises(errors.WrongOwner, match=r"Set wal\.location back"),
        wal_sink.register(shop.spark),
    ):
        shop.run(**{"wal.location": str(shop.folder / "elsewhere")})


APPLICATION = """
import re, sys
from pyspark.sql import SparkSession
import wal_sink
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.format("rate").load()
def run():
    rows.writeStream.format("wal_sink").option("checkpointLocation", sys.argv[1]).start().awaitTermination()
try:
    run()
except Exception as error:
    print(re.search(r"\\S*\\[DATA_SOURCE_NOT_FOUND\\].*", str(error))[0])
with wal_sink.register(spark):
    run()
"""


def test_terminal_output_ends_with_the_remedy(tmp_path: Path) -> None:
    """First the session is not registered. Then the workers' Python lacks the package."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    done = ran(
        [sys.executable, "-c", APPLICATION, str(tmp_path / "checkpoint")],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": str(bare / "bin" / "python")},
    )
    assert done.returncode == 1
    assert done.stdout.strip() in transcript("no register")
    # A PYTHONPATH with this wal_sink lacks its dependencies.
    printed = re.sub(r"cannot import \w+", "cannot import wal_sink", done.stderr)
    assert printed.endswith(transcript("package missing on workers"))


def plain(text: str, shop: Shop) -> str:
    """Replace the names of this run by those of the transcripts."""
    text = text.replace(shop.table.keyspace, "shop").replace(str(shop.folder), "/data")
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", text)
