"""Targets whose client comes with an extra: when it is loaded, and what its errors mean at a start."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from wal_sink.errors import OptionError, TargetUnavailable, WalSinkError
from wal_sink.model.plan import Plan
from wal_sink.target_info import OWN
from wal_sink.targets.base import ErrorClass, Session, Target

_WHERE = {
    True: "the driver of Spark, its executors and every flusher run",
    False: "the driver of Spark and every flusher run",
}
"""The processes that need the client, by `Target.parallel_writes`."""


@contextlib.contextmanager
def importing(target: type[Target] | Target) -> Iterator[None]:
    """Surround the import of a target's client.

    :raises OptionError: it is not installed. That another module is missing is not what the extra mends, and
        stays as it is.
    """
    name = target.name
    try:
        yield
    except ModuleNotFoundError as error:
        if name not in OWN or str(error.name).partition(".")[0] not in OWN[name].client:
            raise
        raise OptionError(
            f"Option target is {name}, and {error.name} is not installed.",
            f"Run, where {_WHERE[target.parallel_writes]}:\npip install 'wal_sink[{name}]'",
        ) from error


@contextlib.contextmanager
def explained(
    classify: Callable[[Exception], ErrorClass],
    place: str,
    to_correct: str | Callable[[Exception], str],
    to_reach: str,
    fatal: type[WalSinkError] = OptionError,
) -> Iterator[None]:
    """Say of a client's error what to do: it passes, or it does not.

    :param place: what answers, as errors name it.
    :raises WalSinkError: `fatal`, or `TargetUnavailable`; one of ours as it is.
    """
    try:
        yield
    except WalSinkError:
        raise
    except Exception as error:
        answer = f"{type(error).__name__}: {shortly(error)}"
        if classify(error) == "fatal":
            remedy = to_correct if isinstance(to_correct, str) else to_correct(error)
            raise fatal(f"{place} refuses: {answer}", remedy) from error
        raise TargetUnavailable(f"{place} does not answer: {answer}", to_reach) from error


def shortly(error: Exception) -> str:
    """Return an error's text in one line, without the frames that delta-rs draws."""
    return " ".join(str(error).replace("\x1b[31m↳\x1b[0m", "").split())[:400]


class Client(NamedTuple):
    """The parts of a target that need its client: functions, and a class, of modules that import it."""

    agree: Callable[..., Plan]
    """Makes the plan, of options, schema, key and `changes`: whether to make what options ask for."""
    session: Callable[[Any, str], Session]
    """The class of a session, made of options and the key of the ledger row."""
    classify: Callable[[Exception], ErrorClass]


class ClientTarget(Target):
    """A target whose client is imported when it is needed: tasks that publish never import it."""

    to_correct: ClassVar[str]
    """The remedy for a refusal at the start."""
    to_reach: ClassVar[str]
    """The remedy if nothing answers there."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The name of the table or server, for errors."""

    @abstractmethod
    def client(self) -> Client:
        """Import the client."""

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the target, and make what options ask for."""
        return self._agreed(schema, key, changes=True)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Do as `plan` does, and make nothing."""
        return self._agreed(schema, key, changes=False)

    def _agreed(self, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
        client = self._imported()
        with explained(client.classify, self.place, self.to_correct, self.to_reach):
            return client.agree(self.options, schema, key, changes=changes)

    def load(self) -> None:
        """Import the client."""
        self._imported()

    def connect(self, query_id: str) -> Session:
        """Make a session; it connects when it is used."""
        return self._imported().session(self.options, query_id)

    def classify(self, error: Exception) -> ErrorClass:
        """Return what an exception of the client means."""
        return self._imported().classify(error)

    def _imported(self) -> Client:
        with importing(self):
            return self.client()
