"""`wal-sink demo --failover` as a process: a standby of PostgreSQL that lags is promoted in mid-stream."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.programs import ran

pytestmark = [pytest.mark.spark, pytest.mark.postgresql, pytest.mark.timeout(600)]

FLIGHTS = 720


def wal_sink(*arguments: object, folder: Path) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it printed."""
    command = [str(Path(sys.executable).with_name("wal-sink")), *map(str, arguments)]
    done = ran(command, cwd=folder)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.test_all
def test_promoted_standby_gets_every_row_from_the_log(tmp_path: Path) -> None:
    """The control by `foreachBatch` has lost what the standby lacked; the sink's table has each row once."""
    code, printed, errors = wal_sink(
        "demo", "--failover", "--json", "--flights", FLIGHTS, folder=tmp_path
    )
    assert code == 0, printed + errors
    report = json.loads(printed)
    assert (report["expected"], report["found"]) == (FLIGHTS, FLIGHTS)
    assert (report["missing"], report["extra"]) == (0, 0)
    assert report["not_replicated"] == FLIGHTS // 3
    assert report["control_missing"] >= FLIGHTS // 3
    assert [table["sink"] for table in report["tables"]] == ["wal_sink", "foreachBatch"]


def test_failover_with_another_target_is_refused(tmp_path: Path) -> None:
    """Only PostgreSQL has a standby here."""
    code, _, errors = wal_sink("demo", "--failover", "--target", "delta", folder=tmp_path)
    assert code == 2
    assert "--failover has a target of its own, PostgreSQL" in errors
