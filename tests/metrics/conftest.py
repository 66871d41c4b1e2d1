"""Where Prometheus is: Debian's package, or the same two programs from elsewhere."""

from __future__ import annotations

from tests.metrics.server import promtool  # noqa: F401 - a fixture
