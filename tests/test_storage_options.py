"""`wal.storageOptions` and `checkpoint.storageOptions`: which store gets them, and that they are secret."""

from __future__ import annotations

import json
import pickle
import traceback

import pyarrow as pa
import pytest

from wal_sink.configuration import Configuration, configure
from wal_sink.errors import OptionError
from wal_sink.publish.preflight import preflight

KEYS = {"key": "AKIA", "secret": "Geheim", "client_kwargs": {"aws_session_token": "Geheim"}}
OTHER = {"endpoint_url": "http://127.0.0.1:9"}
GIVEN = {"cassandra.contactPoints": "127.0.0.1", "keyspace": "shop", "table": "orders"}


def configured(checkpoint: str, **more: object) -> Configuration:
    """Configure a query; `__` in a name stands for a dot, and objects are written as JSON."""
    options = {name.replace("__", "."): value for name, value in more.items()}
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in options.items()}
    return configure({**GIVEN, "checkpointLocation": checkpoint, **texts})


@pytest.mark.parametrize(
    ("checkpoint", "options", "expected"),
    [
        ("s3a://b/ck", {}, ({}, {})),
        ("s3a://b/ck", {"wal__storageOptions": KEYS}, (KEYS, KEYS)),
        ("s3a://b/ck", {"checkpoint__storageOptions": KEYS}, (KEYS, KEYS)),
        ("/ck", {"wal__location": "s3://b/log", "wal__storageOptions": KEYS}, ({}, KEYS)),
        ("s3a://b/ck", {"wal__location": "s3://b/log", "wal__storageOptions": KEYS}, (KEYS, KEYS)),
        ("s3a://b/ck", {"wal__location": "/log", "checkpoint__storageOptions": KEYS}, (KEYS, {})),
        (
            "s3a://b/ck",
            {"wal__location": "s3n://b/log", "checkpoint__storageOptions": KEYS},
            (KEYS, {}),
        ),
        (
            "s3a://b/ck",
            {"wal__storageOptions": KEYS, "checkpoint__storageOptions": OTHER},
            (OTHER, KEYS),
        ),
        (
            "s3a://b/ck",
            {"wal__storageOptions": KEYS, "checkpoint__storageOptions": "{}"},
            ({}, KEYS),
        ),
    ],
)
def test_checkpoint_and_log_open_with_their_own_options(
    checkpoint: str, options: dict[str, object], expected: tuple[object, object]
) -> None:
    """By default the checkpoint has the log's options, if both are in one kind of store."""
    location = configured(checkpoint, **options).location
    assert (dict(location.checkpoint_options), dict(location.log_options)) == expected


@pytest.mark.parametrize("name", ["wal__storageOptions", "checkpoint__storageOptions"])
@pytest.mark.parametrize("text", ['{"secret": "Geheim"', '["Geheim"]', '"Geheim"', "Geheim", "7"])
def test_storage_options_without_json_object_are_refused(name: str, text: str) -> None:
    """The traceback has the name of the option, and nothing of its text."""
    with pytest.raises(OptionError, match=name.replace("__", ".")) as caught:
        configured("s3://b/ck", **{name: text})
    shown = "".join(traceback.format_exception(caught.value))
    assert "Geheim" not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "options",
    [
        {"wal__storageOptions": KEYS},
        {"checkpoint__storageOptions": KEYS},
        {"wal__location": "/log", "wal__storageOptions": KEYS},
    ],
)
def test_storage_option_without_effect_is_refused(options: dict[str, object]) -> None:
    """Checkpoint and log are folders. The error shows the names, and not the values."""
    with pytest.raises(
        OptionError, match=r"\['client_kwargs', 'key', 'secret'\].*remove"
    ) as caught:
        configured("/ck", **options)
    assert "Geheim" not in str(caught.value)


def test_storage_options_are_secret_and_reach_the_tasks() -> None:
    """The store gets the options. The state of the log and the texts do not have them."""
    configuration = configured(
        "s3://b/ck", wal__storageOptions=KEYS, checkpoint__storageOptions=KEYS
    )
    for text in (
        json.dumps(configuration.public),
        repr(configuration),
        str(configuration.location),
        repr(configuration.location.open_log("query")),
        repr(configuration.sink),
    ):
        assert "Geheim" not in text
        assert "AKIA" not in text
    copy = pickle.loads(pickle.dumps(configuration.location))
    assert copy == configuration.location
    assert copy.log_options == KEYS


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("gs://key:Geheim@b/ck", "no '@'"),
        ("abfss://c@Geheim/ck", "abfss://<container>@<account>"),
        ("s3a://key:Geheim@b/ck", "no '@'"),
        ("hdfs://host/ck", "cannot be in hdfs://.*s3, gs, abfss"),
        ("ftp://host/ck", "'ftp'"),
    ],
)
def test_location_with_an_unknown_scheme_is_refused(url: str, reason: str) -> None:
    for options in ({"checkpoint": url}, {"checkpoint": "/ck", "wal__location": url}):
        with pytest.raises(OptionError, match=reason) as caught:
            configured(**options)
        assert "s3://bucket" in caught.value.remedy
        assert "Geheim" not in str(caught.value)


def test_checkpoint_in_a_bucket_needs_option_one_driver() -> None:
    """The user must promise that one driver runs at a time. A log in a bucket needs no promise."""
    options = GIVEN | {"checkpointLocation": "s3a://bucket/ck"}
    with pytest.raises(OptionError, match="rename is a copy") as refused:
        preflight(options, pa.schema([]))
    assert "wal.location into the bucket" in refused.value.remedy
    configured("s3a://bucket/ck", **{"checkpoint.oneDriver": "true"}).refuse_bucket()
    configured("/ck", wal__location="s3://bucket/log").refuse_bucket()


def test_checkpoint_store_of_a_provider_needs_option_one_driver() -> None:
    """A class of a provider may let a driver overwrite the files of another driver."""
    theirs = "com.provider.CheckpointFileManager"
    with pytest.raises(OptionError, match=f"checkpointFileManagerClass is {theirs}"):
        preflight(GIVEN | {"checkpointLocation": "/ck"}, pa.schema([]), theirs)
    configured("/ck", **{"checkpoint.oneDriver": "true"}).refuse_bucket(theirs)
    of_spark = "org.apache.spark.sql.execution.streaming.checkpointing"
    configured("/ck").refuse_bucket(f"{of_spark}.FileSystemBasedCheckpointFileManager")
