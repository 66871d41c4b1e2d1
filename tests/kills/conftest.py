"""The worlds of the tests of the protocol."""

from tests.protocol.conftest import _empty_memory, pytest_generate_tests, world  # noqa: F401 - fixtures
