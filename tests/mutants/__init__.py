"""Deliberate bugs in the protocol, each of which some test has to catch: `make mutants`."""
