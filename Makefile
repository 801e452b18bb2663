# `make run` trains a model, `make test` runs the tests: on a machine with Python 3.11 to 3.13 and nothing else installed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet install
# The first interpreter that tipcast supports and that can make a virtual environment; set PYTHON to choose another.
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
CANDIDATES := $(PYTHON) python3 python3.13 python3.12 python3.11 python /usr/bin/python3
# What `make run` passes on, as in: make run ARGS="-P model=random_forest -P data.rows=20000"
ARGS ?=
ENTRY ?= main
# What `make test` passes on, as in: make test TESTS="tests/unit -k schema". The order is random and its seed printed:
# TESTS=--randomly-seed=SEED for that one again, TESTS="-p no:randomly" as tests stand in their files.
TESTS ?=
# How many processes run tests: one more than a small machine's cores, for tests wait too; 0: one, as a debugger wants it.
PROCESSES ?= 3
# Dask's workers import tipcast: they read its bytecode where Python may write it. OpenMP's threads that wait leave the
# cores to the other tests.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_WAIT_POLICY=passive PATH="$(CURDIR)/$(BIN):$$PATH" \
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: help run test test-servers test-typed test-cases lint types rooms lock clean
help:
	@echo 'make run     train a model on synthetic trips through MLflow (ENTRY=, ARGS="-P key=value")'
	@echo 'make test    run the tests (TESTS="tests/unit -k name", PROCESSES=3)'
	@echo 'make test-servers  the tests that start PostgreSQL and an object store on 127.0.0.1'
	@echo 'make test-typed  every command of the documents, as a process of its own'
	@echo 'make test-cases  scripts beside the project, or of TIPCAST_CASES'
	@echo 'make lint    ruff: rules and format'
	@echo 'make types   mypy'
	@echo 'make rooms   import-linter: who may import whom'
	@echo 'make lock    write requirements/*.txt anew'
	@echo 'make clean   remove what was built'

run: $(VENV)/.stamp-cpu
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mlflow run . --env-manager local --experiment-name tipcast --entry-point $(ENTRY) $(if $(filter prepare,$(ENTRY)),,-P tracking.register=tipcast) $(ARGS)

# Tests that end processes run alone, after the others; who chooses by markers (TESTS="-m gpu") chooses among all. Pytest
# ends with 5 where it has nothing to run.
test: $(VENV)/.stamp-test
ifneq ($(filter -m,$(TESTS)),)
	@$(PYTEST) $(TESTS)
else
	@others=0; faults=0; \
	part=others; $(PYTEST) -m 'not faults and not servers and not typed' $(TESTS) || others=$$?; \
	part=faults; $(PYTEST) -m faults --numprocesses 0 $(TESTS) || faults=$$?; \
	[[ "$$others $$faults" =~ ^(0 0|0 5|5 0)$$ ]]
endif

# PostgreSQL is Debian's package; the object store is moto, of requirements/test.txt. Each starts on 127.0.0.1 and ends.
test-servers: $(VENV)/.stamp-test
	@$(PYTEST) -m servers $(TESTS)

test-typed: PROCESSES := 2
test-typed: $(VENV)/.stamp-test
	@$(PYTEST) --dist load -m typed $(or $(TESTS),tests/typed --ignore tests/typed/test_cases.py)

# Scripts that lie beside the project, where they do; TIPCAST_CASES names another folder.
test-cases: PROCESSES := 2
test-cases: $(VENV)/.stamp-test
	@$(PYTEST) --dist load -m typed tests/typed/test_cases.py

lint: $(VENV)/.stamp-test
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(VENV)/.stamp-test
	@$(BIN)/mypy

rooms: $(VENV)/.stamp-test
	@PYTHONPATH=src $(BIN)/lint-imports --no-cache

$(VENV)/bin/python:
	@for python in $(CANDIDATES); do \
	  if command -v "$$python" >/dev/null && "$$python" -c '$(SUITABLE)' 2>/dev/null; then \
	    echo "making $(VENV) with $$("$$python" --version)"; exec "$$python" -m venv $(VENV); \
	  fi; \
	done; \
	echo 'tipcast needs Python 3.11, 3.12 or 3.13 with the venv module (Debian: apt-get install python3-venv);' \
	  'found none. Set PYTHON=/path/to/python.' >&2; exit 1

$(VENV)/.stamp-cpu: requirements/cpu.txt pyproject.toml | $(VENV)/bin/python
	@echo 'installing requirements/cpu.txt'
	@$(PIP) --require-hashes --requirement requirements/cpu.txt
	@$(PIP) --no-deps --editable .
	@touch $@

$(VENV)/.stamp-test: requirements/test.txt pyproject.toml | $(VENV)/bin/python
	@echo 'installing requirements/test.txt'
	@$(PIP) --require-hashes --requirement requirements/test.txt
	@$(PIP) --no-deps --editable .
	@touch $@

# One resolution for every supported Python and platform, taken from the public index alone. UPGRADE=1 moves every version.
COMPILE = $(BIN)/uv pip compile pyproject.toml --quiet --universal --generate-hashes --python-version 3.11 \
	--no-config --no-emit-index-url --no-emit-find-links --no-annotate --no-strip-extras --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
lock: $(VENV)/.stamp-cpu
	@$(COMPILE) --extra cpu --output-file requirements/cpu.txt
	@$(COMPILE) --extra cpu --extra test --constraint requirements/cpu.txt --output-file requirements/test.txt
	@$(COMPILE) --extra gpu --output-file requirements/gpu.txt

clean:
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
