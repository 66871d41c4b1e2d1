"""The error for a missing client names the extra that installs it."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from wal_sink.builtin_targets import BUILTIN
from wal_sink.errors import OptionError
from wal_sink.targets.client import importing
from wal_sink.targets.delta import DeltaTarget


def test_error_of_missing_client_names_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("deltalake.")]:
        monkeypatch.delitem(sys.modules, module)  # another test has imported it
    monkeypatch.setitem(sys.modules, "deltalake", None)  # makes its import fail
    with (
        pytest.raises(OptionError, match=r"target is delta, and deltalake.* not(.|\n)*\[delta\]"),
        importing(DeltaTarget),
    ):
        importlib.import_module("deltalake.schema")


@pytest.mark.parametrize("missing", ["wal_sink.targets.delta.no_such_module", "no_such_module"])
def test_missing_module_of_no_client_is_raised_unchanged(missing: str) -> None:
    """For example a module of wal_sink in a broken installation."""
    with pytest.raises(ModuleNotFoundError, match=missing), importing(DeltaTarget):
        importlib.import_module(missing)


def test_extra_of_a_target_installs_its_client() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    distributions = packages_distributions()
    for info in BUILTIN.values():
        brought = {re.split(r"[\[><=]", item)[0] for item in extras.get(info.name, ())}
        for module in info.client:
            assert brought & {item.lower() for item in distributions[module]}, module
