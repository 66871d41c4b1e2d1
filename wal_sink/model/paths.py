"""Every path of the log is made and parsed here. Paths are relative to `<wal.location>/<query id>`."""

from __future__ import annotations

import re

from wal_sink.model.manifest import Attempt

LOG = "log.json"
FLUSHER = "flusher.json"
PLANS = "plans/"
TICKETS = "tickets/"
RUNS = "runs/"
MANIFESTS = "manifests/"
KEPT = "kept/"
SEGMENTS = "segments/"
FLUSHED = "flushed/"
DECISIONS = "decisions/"

_EPOCH = "([0-9]{20})"
_GENERATION = "([0-9]{6}|[1-9][0-9]{6,})"  # exactly what is made: a foreign name is never ours
_MANIFEST = re.compile(rf"manifests/{_EPOCH}-{_GENERATION}\.json")
_KEPT = re.compile(rf"kept/{_EPOCH}-{_GENERATION}\.json")
_SEGMENT = re.compile(rf"segments/{_EPOCH}/[^/]+\.arrow")
_RUN = re.compile(rf"runs/{_GENERATION}\.json")
_FLUSHED = re.compile(rf"flushed/{_EPOCH}\.json")
_DECISION = re.compile(rf"decisions/{_EPOCH}\.json")
_INTERVENTION = re.compile(r"decisions/([a-z]+)-[0-9]{20}\.json")
_SEGMENT_TASK = re.compile(rf"segments/{_EPOCH}/([0-9]{{6,}})-([0-9]+)-[^/]+\.arrow")
_OWN_SEGMENT = re.compile(rf"segments/{_EPOCH}/[0-9A-Za-z_-]+\.arrow")
_PLAN_KEY = re.compile(r"[0-9A-Za-z_-]+")


def plan(key: str) -> str:
    """Path of a plan."""
    return f"{PLANS}{key}.json"


def ticket(run_id: str) -> str:
    """Path of a run's ticket."""
    return f"{TICKETS}{run_id}.json"


def run(generation: int) -> str:
    """Path of the claim of a generation."""
    return f"{RUNS}{generation:06}.json"


def manifest(attempt: Attempt) -> str:
    """Path of a manifest."""
    return f"{MANIFESTS}{attempt.epoch:020}-{attempt.generation:06}.json"


def kept(attempt: Attempt) -> str:
    """Path of the note that Spark kept an attempt."""
    return f"{KEPT}{attempt.epoch:020}-{attempt.generation:06}.json"


def segment_folder(epoch: int) -> str:
    """Folder of an epoch's segments, of all attempts."""
    return f"{SEGMENTS}{epoch:020}/"


def segment(epoch: int, partition: int, task_attempt: int, unique: str) -> str:
    """Path of a segment; `unique` keeps attempts of one task apart, whatever Spark numbers them."""
    return f"{segment_folder(epoch)}{partition:06}-{task_attempt}-{unique}.arrow"


def flushed(epoch: int) -> str:
    """Path of the record of a flushed epoch."""
    return f"{FLUSHED}{epoch:020}.json"


def decision(epoch: int) -> str:
    """Path of an operator's decision to give an epoch up."""
    return f"{DECISIONS}{epoch:020}.json"


def intervention(verb: str, at_us: int) -> str:
    """Path of the record of what an operator did to the ledger or to names; `at_us` since 1970."""
    return f"{DECISIONS}{verb}-{at_us:020}.json"


def parse_intervention(path: str) -> str | None:
    """Verb of the record of an intervention; None for any other path."""
    match = _INTERVENTION.fullmatch(path)
    return match[1] if match else None


def is_segment_of(path: str, epoch: int) -> bool:
    """Whether a path that was read somewhere is that of a segment of this epoch, and of nothing else."""
    match = _OWN_SEGMENT.fullmatch(path)
    return match is not None and int(match[1]) == epoch


def is_plan_key(key: str) -> bool:
    """Whether a key that was read somewhere names a plan, and no other place."""
    return _PLAN_KEY.fullmatch(key) is not None


def parse_manifest(path: str) -> Attempt | None:
    """Inverse of `manifest`; None for any other path."""
    match = _MANIFEST.fullmatch(path)
    return Attempt(int(match[1]), int(match[2])) if match else None


def parse_kept(path: str) -> Attempt | None:
    """Inverse of `kept`; None for any other path."""
    match = _KEPT.fullmatch(path)
    return Attempt(int(match[1]), int(match[2])) if match else None


def parse_run(path: str) -> int | None:
    """Inverse of `run`; None for any other path."""
    match = _RUN.fullmatch(path)
    return int(match[1]) if match else None


def parse_flushed(path: str) -> int | None:
    """Inverse of `flushed`; None for any other path."""
    match = _FLUSHED.fullmatch(path)
    return int(match[1]) if match else None


def parse_segment_epoch(path: str) -> int | None:
    """Epoch of a segment's path; None for any other path."""
    match = _SEGMENT.fullmatch(path)
    return int(match[1]) if match else None


def parse_segment_task(path: str) -> tuple[int, int] | None:
    """Spark partition and task attempt that wrote a segment; None for any other path."""
    match = _SEGMENT_TASK.fullmatch(path)
    return (int(match[2]), int(match[3])) if match else None


def parse_decision(path: str) -> int | None:
    """Inverse of `decision`; None for any other path."""
    match = _DECISION.fullmatch(path)
    return int(match[1]) if match else None
