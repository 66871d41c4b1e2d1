"""A client that is not installed is named, with the extra that brings it; and no other module is."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from wal_sink.errors import OptionError
from wal_sink.targets.client import _CLIENTS, importing
from wal_sink.targets.delta import DeltaTarget


def test_a_missing_client_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("deltalake.")]:
        monkeypatch.delitem(sys.modules, module)  # of another test
    monkeypatch.setitem(sys.modules, "deltalake", None)  # import says then that there is none
    with (
        pytest.raises(OptionError, match=r"target is delta, and deltalake.* not(.|\n)*\[delta\]"),
        importing(DeltaTarget),
    ):
        importlib.import_module("deltalake.schema")


@pytest.mark.parametrize("missing", ["wal_sink.targets.delta.no_such_module", "no_such_module"])
def test_an_extra_is_not_blamed_for_another_module(missing: str) -> None:
    """Such as one of our own in a broken installation."""
    with pytest.raises(ModuleNotFoundError, match=missing), importing(DeltaTarget):
        importlib.import_module(missing)


def test_each_extra_brings_its_clients() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    for target, modules in _CLIENTS.items():
        brought = {re.split(r"[\[><=]", each)[0] for each in extras[target]}
        for module in modules:
            assert brought & {each.lower() for each in packages_distributions()[module]}, module
