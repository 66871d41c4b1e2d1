"""The fixtures of the tests of a flush loop."""

from tests.flush.looping import make_loop, make_loop_over, patient, world  # noqa: F401 - fixtures
