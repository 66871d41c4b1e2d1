"""What the tests of a flush loop share."""

from tests.flush.looping import flushing, flushing_in, patient, world  # noqa: F401 - fixtures
