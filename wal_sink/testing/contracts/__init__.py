"""Contract suites, as classes to derive from."""

from __future__ import annotations

import pkgutil

import pytest

# By itself pytest shows the values of a failed `assert` in test files alone; a suite fails in the tests of a
# plug-in, whose author would see "AssertionError" and no more.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
)
