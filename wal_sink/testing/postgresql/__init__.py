"""A real PostgreSQL for tests: from the installed package, or in a container."""
