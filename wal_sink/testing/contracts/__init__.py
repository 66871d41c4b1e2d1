"""Contract suites, as classes to derive from."""
