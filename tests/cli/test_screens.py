"""The screens of `status` and `show` with 80 and 120 columns."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console, Group, RenderableType

from tests.protocol.engine import NOW_US
from wal_sink.admin.show import Attempt, EpochList, EpochState
from wal_sink.cli.inspect import log_screen, sample_screen
from wal_sink.cli.terminal import fact_table, output
from wal_sink.progress.status import Status, status_lines
from wal_sink.units import iso

QUERY = "48700082-8adc-4974-a23e-ac783ad55b09"
LOG = f"file:///data/a/rather/long/folder/of/many/logs/checkpoint/wal_sink/{QUERY}"
STATUS = Status(
    query_id=QUERY,
    writes_to="cassandra, travel.flights_by_origin_day",
    checkpoint="file:///data/checkpoint",
    log=LOG,
    checkpointed=23,
    published=24,
    flushed=20,
    flushed_as_of=iso(NOW_US),
    flushed_seconds_ago=240.0,
    pending_epochs=3,
    pending_rows=28_000,
    pending_bytes=1_200_000,
    budget_bytes=10_000_000,
    oldest_pending_seconds=4.2,
    rows_per_second=20_000.0,
    catches_up_seconds=1.9,
    safe_to_delete=False,
    unsafe_because="3 checkpointed epochs are not flushed",
    flusher="driver:13704",
    flusher_alive=True,
    heartbeat_seconds=1.0,
    doing="trying again at epoch 21: 3 tries, the next in 8 s",
    last_error="TargetUnavailable: No connection to Cassandra at 127.0.0.1, port 9042: it is silent",
    remedy="Nothing, if this is an outage: the flusher tries again until it succeeds.",
)


def epoch(number: int, state: EpochState, age_s: float, rows: int) -> Attempt:
    published = iso(NOW_US - int(age_s * 1_000_000))
    return Attempt(
        epoch=number,
        state=state,
        run_id=QUERY,
        segments=128,
        rows=rows,
        bytes=33_554_432,
        published=published,
    )


LISTED = EpochList(
    query_id=QUERY,
    target="cassandra",
    log=LOG,
    checkpointed=12_341,
    flushed=12_340,
    trimmed=12_339,
    epochs=(
        epoch(12_340, "flushed", 3 * 86_400, 12_345),
        epoch(12_341, "pending", 4_000, 0),
        epoch(12_342, "not checkpointed", 3.2, 1_234_567),
    ),
    left_out=0,
)
ROW = {f"a_long_name_of_column_{i}": "a value with spaces" for i in range(8)} | {"gone": None}


def shown(what: RenderableType, columns: int) -> str:
    file = io.StringIO()
    console = Console(width=columns, file=file, force_terminal=True, color_system=None)
    console.print(what)
    return file.getvalue()


def status_screen(status: Status) -> RenderableType:
    return fact_table(*status_lines(status))


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "what", [status_screen(STATUS), log_screen(LISTED, NOW_US), Group(*sample_screen((ROW,)))]
)
def test_narrow_screen_has_every_word(what: RenderableType, columns: int) -> None:
    """A narrow screen has each word of a wide screen. It breaks only words that are longer than a line."""
    narrow, wide = shown(what, columns), shown(what, 1_000)
    assert max(map(len, narrow.splitlines())) <= columns
    assert "…" not in narrow
    long = {word for word in wide.split() if len(word) > columns - 24}
    assert set(wide.split()) - long <= {*narrow.split()}


def test_status_names_target_rate_and_state() -> None:
    text = shown(status_screen(STATUS), 120)
    assert "target        cassandra, travel.flights_by_origin_day" in text
    assert "flushed       20, 4 min ago" in text
    assert "20,000 rows a second while it flushes; now the flush has stopped" in text
    assert "alive: trying again at epoch 21: 3 tries, the next in 8 s" in text
    well = msgspec.structs.replace(STATUS, last_error=None, remedy=None)
    assert "the pending rows take 1.9 s" in shown(status_screen(well), 120)


def test_show_prints_the_age_of_each_epoch() -> None:
    published = [
        line[-10:].strip() for line in shown(log_screen(LISTED, NOW_US), 80).splitlines()[:4]
    ]
    assert published == ["published", "3 d ago", "66 min ago", "3 s ago"]


def test_lines_in_a_pipe_are_not_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe has no width, unless the variable COLUMNS has one, as in a process of xdist."""
    monkeypatch.delenv("COLUMNS", raising=False)
    with output(as_json=False) as console:
        console.print(status_screen(STATUS))
        console.print("word " * 100)
    printed = capsys.readouterr().out
    assert f"log           {LOG} " in printed
    assert "word " * 99 in printed
