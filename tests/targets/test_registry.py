"""Targets are found by their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wal_sink import targets
from wal_sink.errors import OptionError
from wal_sink.targets.base import INTERFACE
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.registry import target_type
from wal_sink.testing.memory_target import MemoryTarget


class Later(MemoryTarget):
    """A target for a later interface."""

    interface = INTERFACE + 1


class Earlier(MemoryTarget):
    """A target for the former interface."""

    interface = INTERFACE - 1


def test_target_is_found_by_name_or_class() -> None:
    assert target_type("cassandra") is CassandraTarget
    assert target_type("wal_sink.targets.cassandra:CassandraTarget") is CassandraTarget


def test_target_of_an_installed_distribution_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of a distribution on the path has an entry point."""
    (tmp_path / "far_away.py").write_text(
        "from wal_sink.targets.cassandra import CassandraTarget\n"
        "class FarAway(CassandraTarget): name = 'far'\n"
    )
    metadata = tmp_path / "far_away-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: far-away\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[wal_sink.targets]\nfar = far_away:FarAway\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert target_type("far").name == "far"
        with pytest.raises(OptionError, match=r"cassandra, .*far"):
            target_type("near")
    finally:
        sys.modules.pop("far_away", None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("casandra", "no such target.*cassandra.*module:Class"),
        ("", "no such target"),
        ("wal_sink.nowhere:Target", "cannot be imported"),
        ("wal_sink.targets.cassandra:Nothing", "cannot be imported"),
        (":", "cannot be imported"),
        ("wal_sink.targets.cassandra:CassandraOptions", "is not a Target"),
        ("wal_sink.options:parse", "is not a Target"),
        (
            f"{__name__}:Later",
            rf"version {INTERFACE + 1} of the interface .* {INTERFACE}\..*pip install --upgrade",
        ),
        (
            f"{__name__}:Earlier",
            rf"version {INTERFACE - 1} of the interface .* interface = {INTERFACE} on Earlier",
        ),
    ],
)
def test_unfit_target_is_refused_with_a_remedy(name: str, says: str) -> None:
    with pytest.raises(OptionError, match=f"(?s){says}") as refused:
        target_type(name)
    assert refused.value.remedy


def test_package_exports_all_names_of_its_documentation() -> None:
    """The package exports the names of `docs/targets.md`."""
    assert {name for name in targets.__all__ if getattr(targets, name) is None} == set()
    assert dir(targets) == sorted(targets.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Sessions'"):
        targets.Sessions  # noqa: B018
