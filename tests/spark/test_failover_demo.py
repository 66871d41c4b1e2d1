"""`wal-sink demo --failover`: a standby of PostgreSQL that lags is promoted in mid-stream."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.programs import ran

pytestmark = [pytest.mark.spark, pytest.mark.postgresql, pytest.mark.timeout(600)]

FLIGHTS = 720


@pytest.mark.test_all
def test_promoted_standby_gets_every_row_from_the_log(tmp_path: Path) -> None:
    """The control by `foreachBatch` has lost the rows that the standby lacked."""
    command = [str(Path(sys.executable).with_name("wal-sink")), "demo", "--failover", "--json"]
    done = ran([*command, "--flights", str(FLIGHTS)], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["expected"], report["found"]) == (FLIGHTS, FLIGHTS)
    assert (report["missing"], report["extra"]) == (0, 0)
    assert report["not_replicated"] == FLIGHTS // 3
    assert report["control_missing"] >= FLIGHTS // 3
    assert [table["sink"] for table in report["tables"]] == ["wal_sink", "foreachBatch"]
