"""Contract suites, fault injection and a target in memory, for tests of plug-ins (extra `testing`)."""
