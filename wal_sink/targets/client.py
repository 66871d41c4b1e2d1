"""The base class of targets whose client library is an extra. Converts the errors of such a library."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from wal_sink.builtin_targets import BUILTIN
from wal_sink.errors import OptionError, TargetUnavailable, WalSinkError
from wal_sink.model.plan import Plan
from wal_sink.targets.base import ErrorClass, Session, Target

_WHERE = {
    True: "the driver of Spark, its executors and every flusher run",
    False: "the driver of Spark and every flusher run",
}
"""The processes that need the client, by `Target.parallel_writes`."""


@contextlib.contextmanager
def importing(target: type[Target] | Target) -> Iterator[None]:
    """Convert the error of an import in this context if a target's client is missing.

    :raises OptionError: the client is not installed. The error names the extra that installs it.
    :raises ModuleNotFoundError: the missing module does not belong to the client.
    """
    name = target.name
    try:
        yield
    except ModuleNotFoundError as error:
        if name not in BUILTIN or str(error.name).partition(".")[0] not in BUILTIN[name].client:
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
    """Convert an error of the client in this context to an error with a remedy.

    :param place: the table or server, as errors name it. Begins a sentence.
    :param to_correct: the remedy for a fatal error.
    :param to_reach: the remedy for an error that may pass.
    :raises WalSinkError: `fatal` for a fatal error, otherwise `TargetUnavailable`. A WalSinkError is raised
        unchanged.
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
    """Return the first 400 characters of an error's text in one line. The arrows of delta-rs are removed."""
    return " ".join(str(error).replace("\x1b[31m↳\x1b[0m", "").split())[:400]


class Client(NamedTuple):
    """The parts of a target whose modules import the client library."""

    agree: Callable[..., Plan]
    """Returns the plan, from options, schema, key and `changes`. With `changes=False` it creates nothing."""
    session: Callable[[Any, str], Session]
    """The class of a session. Its arguments are the options and the key of the ledger row."""
    classify: Callable[[Exception], ErrorClass]


class ClientTarget(Target):
    """A target whose client is imported on demand. Tasks that only check rows need no client."""

    interface = 2

    to_correct: ClassVar[str]
    """The remedy if the server refuses a request of the start."""
    to_reach: ClassVar[str]
    """The remedy if the server does not answer at the start."""

    noun: ClassVar[str]
    """The beginning of `place`, such as "The Delta table"."""

    @property
    def place(self) -> str:
        """The table or server, as errors name it. Begins a sentence."""
        return f"{self.noun} {self.writes_to}"

    @abstractmethod
    def client(self) -> Client:
        """Import the modules that need the client library, and return what the target needs of them."""

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """Compare the DataFrame with the target, and create what the options request."""
        return self._agreed(schema, key, changes=True)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """Return the plan without creating anything."""
        return self._agreed(schema, key, changes=False)

    def _agreed(self, schema: pa.Schema, key: str, *, changes: bool) -> Plan:
        client = self._imported()
        with explained(client.classify, self.place, self.to_correct, self.to_reach):
            return client.agree(self.options, schema, key, changes=changes)

    def load(self) -> None:
        """Import the client library."""
        self._imported()

    def connect(self, query_id: str) -> Session:
        """Return a session, which connects at its first use."""
        return self._imported().session(self.options, query_id)

    def classify(self, error: Exception) -> ErrorClass:
        """Return the class of an exception of the client."""
        return self._imported().classify(error)

    def _imported(self) -> Client:
        with importing(self):
            return self.client()
