# Everything a person or CI does with this project. `make help` lists it.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Containers often forbid bytecode files; without them every test process compiles everything anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench chaos conformance docs clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	@scripts/setup $(PYTHON) $(VENV)
	@touch $@

setup: $(STAMP) ## Make .venv with icestream and what the tests need

demo: ## Stream made-up events into an Iceberg table: no server, no cloud
	@scripts/demo $(PYTHON) $(VENV)

check: $(STAMP) ## Format, lint, types, layers and unit tests: run before each push
	$(BIN)/ruff format --check src tests bench docs examples
	$(BIN)/ruff check src tests bench docs examples
	$(BIN)/mypy src tests bench docs
	$(BIN)/lint-imports
	$(BIN)/pytest tests/unit -q -n 2 --dist loadfile

test: $(STAMP) ## All tests, with every service that they need
	@scripts/test

format: $(STAMP) ## Format the code
	$(BIN)/ruff format src tests bench docs examples
	$(BIN)/ruff check --fix src tests bench docs examples

bench: $(STAMP) ## Run the benchmarks beside their peers: make bench [CASE=kafka_json_append]
	$(BIN)/python -m bench $(CASE)

chaos: $(STAMP) ## Twenty-five kills at random moments; long random histories; ten thousand batches; every server away for half a minute
	ICESTREAM_KILLS=25 ICESTREAM_HISTORIES=20 ICESTREAM_BATCHES=10000 ICESTREAM_OUTAGE_SECS=30 ICESTREAM_WEBHOOK_EVENTS=200000 ICESTREAM_WEBHOOK_KILLS=10 \
	  $(BIN)/pytest tests/e2e/test_kills.py tests/e2e/test_webhook_kills.py tests/e2e/test_instances.py \
	  tests/e2e/test_mariadb_model.py tests/e2e/test_postgres_model.py tests/conformance/test_outages.py tests/spark/test_any_history.py \
	  tests/spark/test_many_batches.py -q

conformance: $(STAMP) ## Hold every catalog and store to the one suite, and note the results
	ICESTREAM_CONFORMANCE=docs/conformance.json $(BIN)/pytest tests/conformance tests/integration -q -n 2 --dist load \
	  -k "Catalog or test_lakes"
	$(BIN)/python -m docs.generate

docs: $(STAMP) ## Write the generated reference pages
	$(BIN)/python -m docs.generate

clean: ## Remove what these commands made in the project's folder
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache site dist .icestream lake
