"""Flushes many queries in one process, those that begin later, too: `wal-sink flush --follow --under URL`.

A `Follower` refreshes its list of logs again and again. It starts a flusher for each target of a log, starts
them again when a new run of the query has published, and stops them when the log is gone. Two processes may
follow the same logs: they are flushers as any.

*Secrets.* An operator's options are for all queries below a place, and a log says where its query connects.
So a log whose options name another database than the operator's is refused, and so is a checkpoint that is
not below the places that the operator named (see `admin.query` for the rest).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from wal_sink.admin.flush import FlushCommand, FlushDone, Watch
from wal_sink.admin.query import Query, find_query, sink_options
from wal_sink.configuration import storage_options, target_names
from wal_sink.errors import OptionError, WalSinkError, WrongOwner, stand_in
from wal_sink.model.state import State
from wal_sink.options import (
    SinkOptions,
    fields,
    lowered,
    names,
    options_of,
    parse,
    public,
    qualified,
)
from wal_sink.targets.registry import is_installed, target_type
from wal_sink.text import printable
from wal_sink.wal.discovery import LogPlace, logs_below, named_checkpoint, open_root
from wal_sink.wal.location import store_errors

REFRESH_S, REFRESH_BILLED_S = 2.0, 60.0
"""How often the list of logs is read; the second one where a request is paid for."""

_SIGNAL_S = 0.1
"""How soon a waiting follower notices a signal."""


class Candidate(NamedTuple):
    """A query that may have something to flush."""

    place: str
    """URL of its log or its checkpoint, by which it is known."""
    open: Callable[[], Query]
    """Finds it; raises a `WalSinkError` that says why it cannot be flushed yet."""


Find = Callable[[], Iterable[Candidate]]


class _Followed(NamedTuple):
    """A query whose flushers run."""

    query: Query
    run: int
    """Number of the run whose options they have."""
    flushers: Sequence[FlushCommand]


class Follower:
    """Flushes each query that it finds, until `stop`. One thread refreshes; any thread may call `stop`.

    :param find: returns what there is now; called at each refresh.
    :param say: called with what changes, a line each.
    :param watch: makes what counts for metrics; None: nothing is counted.
    :param target: name of the only target to flush; empty: all.
    :param billed: true if each request to the store of the logs is paid for.
    """

    def __init__(
        self,
        find: Find,
        say: Callable[[str], None],
        watch: Watch | None = None,
        *,
        target: str = "",
        billed: bool = False,
    ) -> None:
        self._find, self._say, self._watch, self._target = find, say, watch, target
        self._period_s = REFRESH_BILLED_S if billed else REFRESH_S
        self._followed: dict[str, _Followed] = {}
        self._complaints: dict[str, str] = {}
        self._ended: list[FlushDone] = []
        # No Event: a signal handler calls `stop` while the thread that waits may hold the lock of it.
        self._stopping = False

    def stop(self) -> None:
        """End after the slices under way; called from a signal handler, too."""
        self._stopping = True

    def run(self) -> list[FlushDone]:
        """Refresh and flush until `stop`; return what was flushed, by query and target."""
        try:
            while not self._stopping:
                self.refresh()
                self._rest()
        finally:
            for followed in self._followed.values():
                for flusher in followed.flushers:
                    flusher.stop()
            for place in list(self._followed):
                self._end(place)
        return self._ended

    def _rest(self) -> None:
        """Wait until the next refresh is due, or `stop`."""
        until_s = time.monotonic() + self._period_s
        while not self._stopping and time.monotonic() < until_s:
            time.sleep(_SIGNAL_S)

    def refresh(self) -> None:
        """Start flushers of what is new, and end those of what is gone."""
        try:
            candidates = {candidate.place: candidate for candidate in self._find()}
        except (OSError, WalSinkError) as error:
            self._complain("", error)
            return
        self._complaints.pop("", None)
        for place in self._followed.keys() - candidates.keys():
            self._say(f"The log {place} is gone. Nothing more is flushed from it")
            self._end(place)
        for place in self._complaints.keys() - candidates.keys() - {""}:
            del self._complaints[place]
        for place, candidate in candidates.items():
            try:
                self._refresh_query(candidate)
            except (OSError, WalSinkError) as error:
                self._complain(place, error)
            else:
                self._complaints.pop(place, None)

    def _refresh_query(self, candidate: Candidate) -> None:
        followed, query = self._followed.get(candidate.place), candidate.open()
        with store_errors():
            state = query.state()
        run = state.run.number if state.run is not None else 0
        if followed is not None:
            is_same = (followed.query.query_id, followed.run) == (query.query_id, run)
            if is_same and all(flusher.is_alive() for flusher in followed.flushers):
                return
            self._end(candidate.place)  # a new run may have other options
        configured = query._replace(options=fitting(query, state))
        rate = sink_options(configured, state).max_rows_per_second
        with store_errors():
            flushers = [
                FlushCommand(pipeline, rate, self._watch)
                for pipeline in configured.pipelines(state, self._target)
            ]
        self._followed[candidate.place] = _Followed(query, run, flushers)
        for flusher in flushers:
            flusher.begin()
        target_list = ", ".join(flusher.pipeline.target_name for flusher in flushers)
        self._say(f"Query {query.query_id}: flushing {query.checkpoint.url} to {target_list}")

    def _end(self, place: str) -> None:
        """End the flushers of a query; what they did counts."""
        for flusher in self._followed.pop(place).flushers:
            try:
                self._ended.append(flusher.end())
            except (OSError, WalSinkError) as error:
                self._complain(place, error)

    def _complain(self, place: str, error: Exception) -> None:
        """Say once why a query is not flushed; it is tried again at each refresh."""
        text = error.one_line if isinstance(error, WalSinkError) else repr(error)
        if self._complaints.get(place) != text:
            self._complaints[place] = text
            self._say(f"{place or 'The logs'}: not flushed for now. {text}")


def at_checkpoint(checkpoint: str, wal: str | None, options: Mapping[str, str]) -> Candidate:
    """Return one query, which may begin later.

    :param wal, options: as for `find_query`.
    """
    return Candidate(checkpoint, partial(find_query, checkpoint, wal, options))


class LogsUnder:
    """Finds every query that has its log below one of several places.

    :param urls: folders, or prefixes of buckets.
    :param options: those of an operator, for all queries.
    :raises OptionError: a place cannot be opened.
    """

    def __init__(self, urls: Sequence[str], options: Mapping[str, str]) -> None:
        self._options = options
        # No checkpoint is known yet, and the storage options do not depend on one.
        self._of_store = storage_options(
            parse({**options, "checkpointLocation": urls[0]}, SinkOptions)
        )[0]
        try:
            self._roots = [open_root(url, self._of_store) for url in urls]
        except OSError as error:
            raise OptionError(
                f"{', '.join(urls)} cannot be searched for logs: {error}.",
                "Give folders, or s3://bucket/prefix, gs://bucket/prefix or abfss://….",
            ) from error
        self.billed = any(root.billed for root in self._roots)
        """True if each request is paid for."""

    def __call__(self) -> Iterator[Candidate]:
        """Yield each query; one that lies below two of the places is yielded twice, under one name."""
        with store_errors("A place that --under names"):
            places = [place for root in self._roots for place in logs_below(root)]
        for place in places:
            yield Candidate(place.url, partial(self._open, place))

    def _open(self, place: LogPlace) -> Query:
        """Find the query of a log by the checkpoint that the log names.

        :raises WrongOwner: the checkpoint is another query's, or does not lie below the places.
        :raises OptionError: nothing was published yet.
        """
        with store_errors():
            checkpoint = named_checkpoint(place, self._of_store)
        if checkpoint is None:
            raise OptionError("The log has no state yet.", "Wait for its first micro-batch.")
        if not any(f"{checkpoint}/".startswith(f"{root.url}/") for root in self._roots):
            raise WrongOwner(
                f"The log {place.url} names the checkpoint {printable(checkpoint)}, which is not below"
                f" {' or '.join(root.url for root in self._roots)}. Anyone who can write to the log can"
                " change that.",
                "If it is right, name the folder of the checkpoint by a further --under.",
            )
        query = find_query(checkpoint, place.logs, self._options)
        if query.query_id != place.query_id:
            raise WrongOwner(
                f"The log {place.url} names the checkpoint {checkpoint}, which is that of query"
                f" {query.query_id} now: it was deleted and made again.",
                f"The epochs that are pending in this log are not flushed: `commits/` is gone."
                f" {stand_in(place.url, 'LAST')} If nobody needs the rows, delete the log.",
            )
        return query


def fitting(query: Query, state: State) -> dict[str, str]:
    """Return those options of an operator that a query can have, of options for many queries.

    What another target has is left out, and so is another class of a target.

    :raises OptionError: an option says another place to connect to than the log does.
    """
    logged = lowered(dict(state.run.options)) if state.run is not None else {}
    operators = lowered(query.options)
    of_sink = {name.lower() for name in names(SinkOptions)} - {"target"}
    fit = {name: value for name, value in operators.items() if name in of_sink}
    for prefix in target_names(logged) or ("",):
        own_logged, own = options_of(prefix, logged), options_of(prefix, operators)
        kind = own_logged.get("target", "cassandra")
        if own.get("target") == kind:
            fit[qualified(prefix, "target")] = kind
        elif not is_installed(kind):
            continue  # which only the log names: no code of it is imported
        declared = target_type(kind).options_type
        mine = {option.name.lower(): option for option in fields(declared)}
        own = {name: value for name, value in own.items() if name in mine}
        public_own = lowered(public(parse({**own_logged, **own}, declared)))  # without passwords
        for name in own:
            option = mine[name]
            default = "" if option.required else str(option.default)
            asked, recorded = (texts.get(name, default) for texts in (public_own, own_logged))
            if "connects" in option.extra and asked != recorded:
                raise OptionError(
                    f"This flusher was given {qualified(prefix, option.name)}={printable(asked)}, and the"
                    f" log says {printable(recorded) or 'nothing'}.",
                    "Flush the query by a process of its own:\n"
                    f"wal-sink flush {query.checkpoint.url} --follow --option NAME=VALUE",
                )
            fit[qualified(prefix, option.name)] = own[name]
    return fit
