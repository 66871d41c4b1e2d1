# Everything a person needs: `make help`.
PYTHON ?= python3
JOBS ?= 3
CHECK_JOBS ?= 2
# Folders and modules whose tests need no server and little time.
QUICK := $(wildcard tests/test_*.py) $(addsuffix .py,$(addprefix tests/,cli/test_screens cli/test_terminal \
	postgresql/test_options postgresql/test_type_table sql/test_dialects)) \
	$(addprefix tests/,admin cassandra checkpoint contract demo docs flush kills model mutants progress protocol \
	publish simulator spark state_backends support targets testing wal)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

export PYSPARK_PYTHON := $(abspath $(BIN)/python)

.DEFAULT_GOAL := help
.PHONY: help demo check test test-all simulate soak mutants bench docs screens lint style types quick format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Real flights under SIGKILL, beside foreachBatch (ARGS="--target postgresql": not into Cassandra)
	$(BIN)/wal-sink demo $(ARGS)

check: style ## Lint, and the tests without servers, in two minutes (ARGS=… go to pytest)
	@$(MAKE) --no-print-directory --jobs 2 types quick  # types take one processor for a minute

quick: $(READY)
	$(BIN)/python -m pytest --numprocesses $(CHECK_JOBS) --dist worksteal \
		-m 'not (long or s3 or cassandra or postgresql or mariadb or kafka or spark or docker or prometheus)' \
		$(QUICK) $(ARGS)

test: $(READY) ## Run all tests, with real Spark and real Cassandra (ARGS=… go to pytest; JOBS=3 at a time)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal $(ARGS)

test-all: export WAL_SINK_TEST = all
test-all: $(READY) ## The same, and clusters, stores and failovers; prints a table of them
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal $(ARGS)

simulate: $(READY) ## Play random histories of the real code, all from one seed (ARGS=--help)
	$(BIN)/python -m tests.simulator $(ARGS)

soak: $(READY) ## Kill driver, workers and Cassandra for half an hour (ARGS=--help)
	$(BIN)/python -m tests.soak $(ARGS)

mutants: $(READY) ## Put deliberate protocol bugs in, one at a time; each has to be caught (ARGS=--help)
	$(BIN)/python -m tests.mutants $(ARGS)

bench: $(READY) ## Measure speed beside other sinks, each figure with its target (ARGS=--help)
	$(BIN)/python -m tests.benchmarks $(ARGS)

docs: $(READY) ## Build the documentation site into build/docs/site; a broken link fails
	$(BIN)/python -m docs.tooling

screens: $(READY) ## Make the pictures of docs/monitor.md again, from a query with an outage
	$(BIN)/python -m tests.screens

lint: style types ## Check format, style and types

style: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python .ci/commits.py

types: $(READY)
	$(BIN)/mypy

format: $(READY) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Delete what was built; caches outside this folder stay
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "wal_sink needs Python 3.11 to 3.13; set PYTHON=…" >&2; exit 1; }
	@command -v java >/dev/null || { echo "Spark and Cassandra need Java 17: install a JRE" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[testing,demo,all,connect]' --group dev
	touch $@
