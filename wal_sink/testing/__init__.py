"""For tests of plug-ins and of pipelines: contract suites and stand-ins. Needs the `testing` extra."""
