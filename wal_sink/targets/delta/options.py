"""The options of the Delta target."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import CONNECTS, SECRET, SHAPES, about
from wal_sink.targets.ddl import KEY_COLUMNS, without_effect
from wal_sink.targets.operation_options import OPERATION_COLUMN, UNAVAILABLE_VALUE, OperationOptions

EVENT_COLUMN = "delta.timestampColumn"

_WITHOUT_KEYS = re.compile(
    r"[^:]*|/.*|file:.*|(?:"  # a path, or a URL of
    r"(?:abfss?|wasbs?)://[^/:@?]+@[^/:@?]+"  # a container of an account
    r"|(?:hdfs|viewfs|https?)://[^/:@?]+(?::\d+)?"  # a host and its port
    r"|[a-z][a-z0-9+.-]*://[^/:@?]*"  # a bucket
    r")(?:/[^?]*)?",
    re.IGNORECASE | re.DOTALL,
)
"""Matches a path or URL without user, password and query. An `@` after a slash does not match, since a
password may have a slash."""


class DeltaOptions(OperationOptions, frozen=True, kw_only=True):
    """Options `delta.*`."""

    key_alone: ClassVar[bool] = True

    path: Annotated[
        str,
        about(
            "Path or URL of the table, such as /data/orders or s3://bucket/orders",
            CONNECTS,
            SHAPES,
            min_length=1,
        ),
    ] = msgspec.field(name="delta.path")
    storage: Annotated[
        str,
        about(
            "JSON object of texts for the store of the table, by the names of delta-rs, such as"
            ' {"AWS_REGION": "eu-central-1"}',
            SECRET,
        ),
    ] = msgspec.field(name="delta.storageOptions", default="")

    mode: Annotated[
        Literal["append", "upsert"],
        about("How rows get into the table: append, or upsert by keyColumns", SHAPES),
    ] = msgspec.field(name="delta.mode", default="append")
    timestamp_column: Annotated[
        str,
        about(
            "Column with the time at which each row changed: in an upsert the row with the later time stays,"
            " in whichever order the rows arrive",
            SHAPES,
        ),
    ] = msgspec.field(name=EVENT_COLUMN, default="")
    merge_schema: Annotated[
        bool,
        about(
            "Whether columns of the DataFrame that the table lacks are added when a query starts",
            SHAPES,
        ),
    ] = msgspec.field(name="delta.mergeSchema", default=False)

    def __post_init__(self) -> None:
        """Remove slashes at the end of the path, so that one table has one name. Check the options.

        :raises OptionError: delta.path is relative or has a secret, an option has no effect, or an upsert has
            no key. The log would store the secret.
        """
        if not _WITHOUT_KEYS.fullmatch(self.path):
            # The error does not repeat the path, which has the secret.
            raise OptionError(
                "Option delta.path is a URL with a secret in it (a user with a password, or text after a"
                " `?`), and the path is written to the log.",
                "Write the URL without it, such as s3://bucket/orders. Give keys by delta.storageOptions or"
                " in the environment. If a secret was in the option of an earlier run, replace it.",
            )
        if "://" not in self.path and not self.path.startswith("/"):
            raise OptionError(
                f"Option delta.path is {self.path}, which is neither an absolute path nor a URL with `://`. A"
                " relative path is another folder in each process.",
                "Write an absolute path, such as /data/orders, or a URL, such as s3://bucket/orders.",
            )
        msgspec.structs.force_setattr(self, "path", re.sub(r"(?<=[^/:])/+$", "", self.path))

        if self.mode == "upsert" and not self.layout.key:
            raise OptionError(
                f"Option delta.mode is upsert, and {KEY_COLUMNS} names no column.",
                f"List in {KEY_COLUMNS} the columns by which a row replaces another one.",
            )
        if self.mode == "append" and self.layout.key:
            problem = "and delta.mode is append: a Delta table has no key"
            raise without_effect(KEY_COLUMNS, problem, "delta.mode")
        self.refuse_without_key("delta.mode", self.mode)
        if self.timestamp_column and self.mode == "append":
            problem = "and delta.mode is append: every row is added"
            raise without_effect(EVENT_COLUMN, problem, "delta.mode")
        if self.timestamp_column and self.operation_column:
            raise OptionError(
                f"Options {EVENT_COLUMN} and {OPERATION_COLUMN} are both given: a deleted row leaves no time"
                " in the table, so an older row that arrives later would bring its key back.",
                f"Leave one of them out. Without {OPERATION_COLUMN}, a column of the table can mark a row as"
                " deleted.",
            )

        if self.timestamp_column and self.unavailable_value:
            raise OptionError(
                f"Options {EVENT_COLUMN} and {UNAVAILABLE_VALUE} are both given: a row that arrives late is"
                " skipped whole, with a value that the later row has omitted.",
                "Leave one of them out.",
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key in mode upsert. Empty in mode append."""
        return self.layout.key

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The storage options of delta-rs. None if delta-rs shall read only the environment.

        :raises OptionError: the option is not a JSON object of texts.
        """
        if not self.storage:
            return None
        try:
            return msgspec.json.decode(self.storage, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise OptionError(
                "Option delta.storageOptions is not a JSON object whose values are texts.",
                'Write it as {"AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"}.',
            ) from error
