"""Deliberate bugs in the product, each of which a test must catch: `make mutants`."""
