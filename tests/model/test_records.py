"""The JSON of the log, format 1. The golden files are never edited.

A change that breaks a test of this file needs a new format, with new golden files.
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
from wal_sink.model.manifest import Manifest, manifest_digest
from wal_sink.model.plan import Agreed, Plan
from wal_sink.model.state import State
from wal_sink.progress.flusher_report import FlusherReport

GOLDEN = Path(__file__).parent / "golden" / "format-1"

KINDS: dict[str, type[Record]] = {
    "log_url": LogUrl,
    "state": State,
    "state_before_a_run": State,
    "manifest": Manifest,
    "manifest_with_refused_rows": Manifest,
    "manifest_with_rows": Manifest,
    "manifest_without_rows": Manifest,
    "plan": Plan,
    "plan_with_operations": Plan,
    "agreed": Agreed,
    "flusher_report": FlusherReport,
    "flusher_report_with_error": FlusherReport,
}
"""The kind of record in each golden file."""


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def changed(name: str, **changes: object) -> bytes:
    """Return a golden file with some of its fields changed."""
    return json.dumps(json.loads(golden(name)) | changes).encode()


def golden_record(name: str) -> Record:
    return KINDS[name].from_json(golden(name), "there")


def test_every_kind_of_record_has_a_golden_file() -> None:
    kinds = {kind for kind in Record.__subclasses__() if kind.__module__.startswith("wal_sink.")}
    assert kinds == set(KINDS.values())
    assert {path.stem for path in GOLDEN.iterdir()} == KINDS.keys()
    assert FORMAT == 1


@pytest.mark.parametrize("name", KINDS)
def test_golden_file_is_read_and_written_to_the_byte(name: str) -> None:
    assert golden_record(name).to_json() == golden(name)


@pytest.mark.parametrize("name", KINDS)
def test_unknown_fields_are_ignored(name: str) -> None:
    """A later version may add fields within the format."""
    assert KINDS[name].from_json(changed(name, later={"a": [1]}), "there") == golden_record(name)


@pytest.mark.parametrize(
    ("name", "field"),
    [("manifest", "segments"), ("plan", "columns"), ("flusher_report_with_error", "error")],
)
def test_unknown_fields_of_nested_records_are_ignored(name: str, field: str) -> None:
    part = json.loads(golden(name))[field]
    longer = (
        [item | {"later": 1} for item in part] if isinstance(part, list) else part | {"later": 1}
    )
    assert KINDS[name].from_json(changed(name, **{field: longer}), "there") == golden_record(name)


@pytest.mark.parametrize("name", KINDS)
def test_record_of_a_newer_format_is_refused(name: str) -> None:
    """The error names file and format, even if the content cannot be decoded as today's format."""
    newer = FORMAT + 1
    texts = (changed(name, format=newer), f'{{"format": {newer}, "all": "else"}}'.encode())
    for text in (*texts, *map(laid_out, texts)):
        with pytest.raises(CorruptLog, match=rf"there/x\.json has format {newer}") as caught:
            KINDS[name].from_json(text, "there/x.json")
        assert "upgrade" in caught.value.remedy


@pytest.mark.parametrize("name", KINDS)
def test_broken_or_other_json_is_refused(name: str) -> None:
    cut = [golden(name)[:end] for end in (0, 1, -2)]
    for text in (*cut, b"[]", b"1", b"null", b'""', b"{}", b"\xff\xfe", b"{}{}"):
        refused(name, text)


@pytest.mark.parametrize("name", KINDS)
def test_missing_or_mistyped_field_of_json_is_refused(name: str) -> None:
    """Only a field with a default may be missing, and no field may have another type."""
    kind = KINDS[name]
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
def test_integer_field_with_text_or_float_is_refused(value: object) -> None:
    refused("manifest", changed("manifest", epoch=value))


def laid_out(text: bytes) -> bytes:
    """Return JSON as records are written."""
    return msgspec.json.format(text, indent=1) + b"\n"


def refused(name: str, text: bytes) -> None:
    with pytest.raises(CorruptLog, match=r"there/x\.json") as caught:
        KINDS[name].from_json(text, "there/x.json")
    assert "Restore" in caught.value.remedy


MANIFEST = Manifest.from_json(golden("manifest"), "there")
WITH_ROWS = msgspec.structs.replace(
    MANIFEST,
    segments=(
        msgspec.structs.replace(MANIFEST.segments[0], bytes=9, data=b"\n}\nARROW0"),
        MANIFEST.segments[1],
        msgspec.structs.replace(MANIFEST.segments[1], bytes=6, data=b"ARROW1"),
    ),
)


def test_inlined_segments_follow_the_json_of_a_manifest() -> None:
    """The bytes of inlined segments are not encoded. The JSON has their digests."""
    data = WITH_ROWS.to_file()
    json_, rows = data[: data.index(b"\n}\n") + 3], b"\n}\nARROW0ARROW1"
    assert data == json_ + rows
    assert [load.get("data") for load in json.loads(json_)["segments"]] == ["", None, ""]
    assert Manifest.from_file(data, "there") == WITH_ROWS
    assert manifest_digest(data) == digest(json_)
    assert Manifest.from_json(json_, "there") == WITH_ROWS.without_data()


@pytest.mark.parametrize("name", ["manifest", "manifest_with_refused_rows"])
def test_manifest_without_rows_has_the_digest_of_its_file(name: str) -> None:
    """So `sha256sum` of the file prints the digest that ledger row and state have."""
    data = golden(name)
    assert Manifest.from_file(data, "there") == golden_record(name)
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
    with pytest.raises(CorruptLog, match=r"there/x\.json (has|cannot)"):
        Manifest.from_file(data, "there/x.json")


def test_manifest_of_a_newer_format_is_refused() -> None:
    data = msgspec.structs.replace(WITH_ROWS, format=FORMAT + 1).to_file()
    with pytest.raises(CorruptLog, match=r"has format \d") as caught:
        Manifest.from_file(data + b"more", "there/x.json")
    assert "upgrade" in caught.value.remedy


def test_manifest_sums_rows_and_bytes_of_its_segments() -> None:
    assert (MANIFEST.rows, MANIFEST.bytes) == (1_001, 66_270)


def test_digests_are_those_of_sha256sum() -> None:
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest(b"abc") == known


def test_decoders_are_prepared_by_the_import() -> None:
    """Two threads that decode a type for the first time end the process (msgspec 0.22)."""
    program = """
import sys
from pathlib import Path
from wal_sink.wal.store import LogStore
from wal_sink.checkpoint import checkpoint
from wal_sink.model import manifest, plan, state
from wal_sink.progress import flusher_report
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
