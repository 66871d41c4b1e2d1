"""The JSON of the log, format 1: files that the first release wrote have to be read for ever.

The golden files are never edited. A change that breaks this test needs a new format and new files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.programs import ran
from wal_sink.checkpoint.checkpoint import LogUrl
from wal_sink.errors import CorruptLog
from wal_sink.model.codec import FORMAT, Record, digest
from wal_sink.model.manifest import Manifest, SegmentRef, manifest_digest
from wal_sink.model.plan import Agreed, Column, Plan
from wal_sink.model.state import (
    Change,
    EarlierMark,
    EpochManifest,
    GivenUp,
    Mark,
    Predecessor,
    Run,
    State,
    Sums,
    TargetState,
)
from wal_sink.progress.report import ErrorReport, FlusherReport

GOLDEN = Path(__file__).parent / "golden" / "format-1"

RUN = "5a4f1c1e-6a0f-4a4e-9c55-0b9c0e3c1b2d"
QUERY = "0d0a7c52-8a3f-4c8e-8f57-2f1b7a7f9c11"
US = 1_700_000_000_000_000

MANIFEST = Manifest(
    epoch=41,
    query_id=QUERY,
    run_id=RUN,
    nonce="0123456789abcdef0123456789abcdef",
    plan="9f86d081884c7d659a2feaa0c55ad015",
    segments=(
        SegmentRef(
            path="segments/00000000000000000041/000000-0-aaaa.arrow",
            rows=1_000,
            bytes=65_536,
            digest="a" * 64,
        ),
        SegmentRef(
            path="segments/00000000000000000041/000001-2-bbbb.arrow",
            rows=1,
            bytes=734,
            digest="b" * 64,
        ),
    ),
    offsets='v1\n{"batchTimestampMs":1700000000000}\n{"logOffset":41}',
    offsets_digest="c" * 64,
    published_us=US,
    first_us=US + 1,
    last_us=US + 1_001,
    sums=Sums(rows=5_001, bytes=266_270),
    predecessor=Predecessor(
        manifest=f"manifests/{40:020}-{RUN}.json",
        digest="d" * 64,
        last_us=US,
        sums=Sums(rows=4_000, bytes=200_000),
    ),
)

STATE = State(
    number=12,
    changed=Change(by="worker-1:4711", at_us=US + 9, reason="mark orders at 41"),
    query_id=QUERY,
    log_id="fedcba9876543210fedcba9876543210",
    checkpoint="file:///data/checkpoints/köln",
    first=0,
    run=Run(number=9, run_id=RUN, options={"keyspace": "shop"}),
    opened=("an-older-run", RUN),
    last=EpochManifest(
        epoch=41,
        manifest=f"manifests/{41:020}-{RUN}.json",
        digest="e" * 64,
        offsets_digest="c" * 64,
        first_us=MANIFEST.first_us,
        last_us=MANIFEST.last_us,
        sums=MANIFEST.sums,
        predecessor=MANIFEST.predecessor,
    ),
    settled=41,
    trimmed=39,
    targets=(
        TargetState(
            name="orders",
            first=0,
            mark=Mark(
                epoch=41,
                digest="e" * 64,
                sums=MANIFEST.sums,
                at_us=US + 9,
                earlier=(EarlierMark(epoch=40, at_us=US, bytes=200_000),),
            ),
        ),
        TargetState(
            name="books",
            first=7,
            mark=Mark(epoch=6, digest="", sums=Sums(), at_us=US),
            given_up=True,
        ),
    ),
    given_up=(GivenUp(epoch=38, target="orders"),),
)

PLAN = Plan(
    key="9f86d081884c7d659a2feaa0c55ad015",
    target="cassandra",
    table='"shop"."orders"',
    columns=(
        Column(name="id", source="int64", type="bigint", role="partition"),
        Column(name="at", source="timestamp[us, tz=UTC]", type="timestamp", role="clustering"),
        Column(name="owner", source="string", type="text", role="static"),
        Column(name="amount", source="double", type="double", role="regular"),
    ),
    details={"nulls": "unset"},
)

GOLDEN_RECORDS: dict[str, Record] = {
    "log_url": LogUrl(log="file:///data/ckpt/orders/wal_sink/q"),
    "state": STATE,
    "state_before_a_run": msgspec.structs.replace(STATE, run=None, opened=(), given_up=()),
    "manifest_with_refused_rows": msgspec.structs.replace(MANIFEST, refused=MANIFEST.segments[:1]),
    "manifest_with_rows": msgspec.structs.replace(
        MANIFEST,
        segments=(
            MANIFEST.segments[0],
            msgspec.structs.replace(MANIFEST.segments[1], bytes=6, data=b""),
        ),
    ),
    "manifest": MANIFEST,
    "manifest_without_rows": msgspec.structs.replace(MANIFEST, segments=()),
    "plan": PLAN,
    "plan_with_operations": msgspec.structs.replace(
        PLAN,
        columns=(
            PLAN.columns[0],
            Column(name="op", source="string", type="operation", role="operation"),
            Column(name="line", source="int32", type="int", role="clustering"),
        ),
        operations={"D": "delete", "U": "upsert"},
        sent_once=True,
        details={"keyspace": "shop", "table": "orders", "clustering": ["line"]},
    ),
    "agreed": Agreed(
        key="9f86d081884c7d659a2feaa0c55ad015",
        plans={
            "orders": Plan(
                key="00112233445566778899aabbccddeeff", target="delta", table="/t", columns=()
            )
        },
        compared=False,
    ),
    "flusher_report": FlusherReport(
        flusher="worker-1:4711", doing="everything is flushed", heartbeat_us=US
    ),
    "flusher_report_with_error": FlusherReport(
        flusher="worker-1:4711",
        doing="writing epoch 41",
        heartbeat_us=US + 10,
        rows_per_second=20_000.0,
        stopping=RUN,
        error=ErrorReport(
            kind="TargetUnavailable",
            what="The target does not answer: NoHostAvailable",
            remedy="Nothing, if this is an outage.",
            epoch=41,
            at_us=US + 9,
            transient=True,
        ),
    ),
}

RECORDS = sorted(GOLDEN_RECORDS)


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def changed(name: str, **changes: object) -> bytes:
    """Return a golden file with some of its fields changed."""
    return json.dumps(json.loads(golden(name)) | changes).encode()


def test_every_golden_file_is_tested() -> None:
    """And nothing is tested that has none."""
    assert {path.stem for path in GOLDEN.iterdir()} == {*GOLDEN_RECORDS}


def test_every_kind_of_record_has_a_golden_file() -> None:
    """A new JSON object of the log comes with its file."""
    kinds = {kind for kind in Record.__subclasses__() if kind.__module__.startswith("wal_sink.")}
    assert kinds == {type(record) for record in GOLDEN_RECORDS.values()}
    assert FORMAT == 1


@pytest.mark.parametrize("name", RECORDS)
def test_golden_file_is_read_and_written_to_the_byte(name: str) -> None:
    """What the first release wrote means the same today, and is still what is written."""
    record = GOLDEN_RECORDS[name]
    assert type(record).from_json(golden(name), "there") == record
    assert record.to_json() == golden(name)


@pytest.mark.parametrize("name", RECORDS)
def test_unknown_fields_are_ignored(name: str) -> None:
    """A later version may add some within the format."""
    record = GOLDEN_RECORDS[name]
    assert type(record).from_json(changed(name, later={"a": [1]}), "there") == record


def test_unknown_fields_of_nested_records_are_ignored() -> None:
    """In the parts of a record: a segment, a column, an error."""
    for name, field in (("manifest", "segments"), ("plan", "columns")):
        parts = [part | {"later": 1} for part in json.loads(golden(name))[field]]
        record = GOLDEN_RECORDS[name]
        assert type(record).from_json(changed(name, **{field: parts}), "there") == record
    name = "flusher_report_with_error"
    error = json.loads(golden(name))["error"] | {"later": 1}
    assert FlusherReport.from_json(changed(name, error=error), "there") == GOLDEN_RECORDS[name]


@pytest.mark.parametrize("name", RECORDS)
def test_higher_format_is_refused(name: str) -> None:
    """Even when it can no longer be read as today's: the message names the file and its format."""
    newer = FORMAT + 1
    texts = (changed(name, format=newer), f'{{"format": {newer}, "all": "else"}}'.encode())
    for text in (*texts, *map(laid_out, texts)):
        with pytest.raises(CorruptLog, match=rf"there/x\.json has format {newer}") as caught:
            type(GOLDEN_RECORDS[name]).from_json(text, "there/x.json")
        assert "upgrade" in caught.value.remedy


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("cut", [0, 1, -2])
def test_broken_json_is_refused(name: str, cut: int) -> None:
    """An empty or torn file is never taken for a record."""
    refused(name, golden(name)[:cut])


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("text", [b"[]", b"1", b"null", b'""', b"{}", b"\xff\xfe", b"{}{}"])
def test_other_json_is_refused(name: str, text: bytes) -> None:
    """JSON that is not a record is refused in the same way."""
    refused(name, text)


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_needed_and_has_its_type(name: str) -> None:
    """Nothing is guessed: only fields with a default may be absent, and none may be of another type."""
    kind = type(GOLDEN_RECORDS[name])
    for field in msgspec.structs.fields(kind):
        options: dict[str, Any] = json.loads(golden(name))
        odd = json.dumps(options | {field.name: [{"odd": []}]}).encode()
        refused(name, odd)
        refused(name, laid_out(odd))
        options.pop(field.name, None)  # it may have come after the golden file
        text = json.dumps(options).encode()
        for item in (text, laid_out(text)):
            if field.required or field.name == "format":
                refused(name, item)
            else:
                kind.from_json(item, "there")


@pytest.mark.parametrize("value", ["1", 1.5, None, True])
def test_numbers_are_not_guessed_from_other_values(value: object) -> None:
    """An epoch is an integer, nothing that looks like one."""
    refused("manifest", changed("manifest", epoch=value))


def laid_out(text: bytes) -> bytes:
    """Return JSON as records are written: what begins so is decoded at once."""
    return msgspec.json.format(text, indent=1) + b"\n"


def refused(name: str, text: bytes) -> None:
    with pytest.raises(CorruptLog, match=r"there/x\.json") as caught:
        type(GOLDEN_RECORDS[name]).from_json(text, "there/x.json")
    assert "Restore" in caught.value.remedy


WITH_ROWS = msgspec.structs.replace(
    MANIFEST,
    segments=(
        msgspec.structs.replace(MANIFEST.segments[0], bytes=9, data=b"\n}\nARROW0"),
        MANIFEST.segments[1],
        msgspec.structs.replace(MANIFEST.segments[1], bytes=6, data=b"ARROW1"),
    ),
)


def test_rows_of_a_manifest_follow_its_json() -> None:
    """Nothing of them is encoded; the digest is that of the JSON, which has theirs."""
    data = WITH_ROWS.to_file()
    json_, rows = data[: data.index(b"\n}\n") + 3], b"\n}\nARROW0ARROW1"
    assert data == json_ + rows
    assert [load.get("data") for load in json.loads(json_)["segments"]] == ["", None, ""]
    from_file = Manifest.from_file(data, "there")
    assert from_file == (WITH_ROWS, digest(json_))
    assert manifest_digest(data) == digest(json_)
    assert Manifest.from_json(json_, "there") == WITH_ROWS.without_data()


@pytest.mark.parametrize("name", ["manifest", "manifest_with_refused_rows"])
def test_manifest_without_rows_has_the_digest_of_its_file(name: str) -> None:
    """`sha256sum` of a manifest without rows is the digest that ledger row and state have."""
    data = golden(name)
    assert Manifest.from_file(data, "there") == (GOLDEN_RECORDS[name], digest(data))
    assert manifest_digest(data) == digest(data)


@pytest.mark.parametrize(
    "data",
    [
        WITH_ROWS.to_file()[:-1],
        WITH_ROWS.to_file() + b"1",
        WITH_ROWS.without_data().to_json(),
        MANIFEST.to_file() + b"1",
        b" " + WITH_ROWS.to_file().replace(b"\n}\n", b"\n }\n", 1),
    ],
    ids=["cut", "longer", "without rows", "rows that it does not name", "edited"],
)
def test_manifest_of_another_length_is_refused(data: bytes) -> None:
    """A byte that nothing names is as wrong as one that is missing."""
    with pytest.raises(CorruptLog, match=r"there/x\.json (has|cannot)"):
        Manifest.from_file(data, "there/x.json")


def test_manifest_of_a_newer_format_is_refused() -> None:
    """Its JSON is read alone."""
    data = msgspec.structs.replace(WITH_ROWS, format=FORMAT + 1).to_file()
    with pytest.raises(CorruptLog, match=r"has format \d") as caught:
        Manifest.from_file(data + b"more", "there/x.json")
    assert "upgrade" in caught.value.remedy


def test_manifest_adds_up_its_segments() -> None:
    """Rows, bytes and name follow from the fields, and are not written twice."""
    assert (MANIFEST.rows, MANIFEST.bytes) == (1_001, 66_270)
    assert GOLDEN_RECORDS["manifest_without_rows"].rows == 0  # type: ignore[attr-defined]


def test_digests_are_those_of_sha256sum() -> None:
    """An operator can check them with common tools."""
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest(b"abc") == known


def test_records_are_learned_as_they_are_imported() -> None:
    """By one thread: msgspec 0.22 ends a process in which two threads decode a type for the first time."""
    program = """
import sys
from pathlib import Path
from wal_sink.wal.store import LogStore
from wal_sink.checkpoint import checkpoint
from wal_sink.model import manifest, plan, state
from wal_sink.progress import report
from wal_sink.model.codec import Record
from wal_sink.targets.cassandra.row_plan import CassandraPlan

learning = []

def notice(frame, event, _):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        learning.append(frame.f_locals["obj"].__name__)

sys.setprofile(notice)
for kind in Record.__subclasses__():
    try:
        kind.from_json(b'{"format": 1}', "here")
    except Exception:
        pass  # a field is missing
text = Path(sys.argv[1], "plan_with_operations.json").read_bytes()
assert CassandraPlan.of(plan.Plan.from_json(text, "here")).details.clustering
sys.setprofile(None)
print(learning)
"""
    done = ran([sys.executable, "-c", program, GOLDEN])
    assert (done.stdout, done.stderr) == ("[]\n", "")
