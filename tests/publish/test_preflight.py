"""The check of a query's options before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal_sink.errors import OptionError
from wal_sink.publish.preflight import preflight_options


@pytest.mark.parametrize("option", ["checkpointLocation", "wal.location"])
@pytest.mark.parametrize("below", ["", "/a/b"])
def test_folder_below_a_file_is_refused(tmp_path: Path, option: str, below: str) -> None:
    (tmp_path / "file").write_text("")
    options = {"checkpointLocation": f"{tmp_path}/new/checkpoint", "table": "t"}
    options |= {"target": "sqlite_target:SqliteTarget", "sqlite.path": "x"}
    preflight_options(options)
    with pytest.raises(OptionError, match=f"Option {option} .* {tmp_path}/file is a file"):
        preflight_options(options | {option: f"{tmp_path}/file{below}"})
