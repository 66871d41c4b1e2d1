"""The options of the Delta target."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from wal_sink.errors import OptionError
from wal_sink.options import CONNECTS, SECRET, Options


class DeltaOptions(Options, frozen=True, kw_only=True):
    """Options `delta.*`."""

    path: Annotated[
        str,
        Meta(
            min_length=1,
            description="path or URL of the table, such as /data/orders or s3://bucket/orders",
            extra=CONNECTS,
        ),
    ] = msgspec.field(name="delta.path")
    storage: Annotated[
        str,
        Meta(
            description="JSON object of texts for the table's store, by delta-rs' names, such as"
            ' {"AWS_REGION": "eu-central-1"}',
            extra=SECRET,
        ),
    ] = msgspec.field(name="delta.storageOptions", default="")

    def __post_init__(self) -> None:
        """Refuse a relative path: driver and executors have working directories of their own.

        :raises OptionError: it is one.
        """
        if "://" not in self.path and not self.path.startswith("/"):
            raise OptionError(
                f"Option delta.path is {self.path}, which counts from another folder in each process.",
                "Write an absolute path, such as /data/orders, or a URL.",
            )

    @property
    def storage_options(self) -> dict[str, str] | None:
        """What delta-rs is given; None: it looks into the environment alone.

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
