# `make run` trains a model, `make test` runs the tests: on a machine with Python 3.11 to 3.13 and nothing else installed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet install
# The newest Python that tipcast supports and that can make a virtual environment, of PATH or of pyenv. PYTHON=/path/to/python
# chooses another; PYTHONS="3.12 3.11" says which versions to look for, the first that is found.
PYTHONS ?= 3.13 3.12 3.11
PYENV_ROOT ?= $(HOME)/.pyenv
CANDIDATES = $(or $(PYTHON),$(foreach version,$(PYTHONS),python$(version) \
	$(wildcard $(PYENV_ROOT)/versions/$(version).*/bin/python)) python3 python /usr/bin/python3)
SUITABLE := import sys, venv, ensurepip; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1:])
# Prints the first that is suitable.
FIND = for python in $(CANDIDATES); do \
	  if command -v "$$python" >/dev/null && "$$python" -c '$(SUITABLE)' $(PYTHONS) 2>/dev/null; then \
	    echo "$$python"; exit 0; \
	  fi; \
	done; exit 1
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

.PHONY: help run test test-servers test-typed test-cases smoke python lint types rooms lock clean
help:
	@echo 'make run     train a model on synthetic trips through MLflow (ENTRY=, ARGS="-P key=value")'
	@echo 'make test    run the tests (TESTS="tests/unit -k name", PROCESSES=3)'
	@echo 'make test-servers  the tests that start PostgreSQL and an object store on 127.0.0.1'
	@echo 'make test-typed  every command of the documents, as a process of its own'
	@echo 'make test-cases  scripts beside the project, or of TIPCAST_CASES'
	@echo 'make smoke   the first commands of README and unit tests, on another Python (PYTHONS=3.11 VENV=.venv-3.11)'
	@echo 'make python  which Python the virtual environment would be made with'
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

test-typed: $(VENV)/.stamp-test
	@$(PYTEST) --dist load -m typed $(or $(TESTS),tests/typed --ignore tests/typed/test_cases.py)

# Scripts that lie beside the project, where they do; TIPCAST_CASES names another folder.
test-cases: PROCESSES := 2
test-cases: $(VENV)/.stamp-test
	@$(PYTEST) --dist load -m typed tests/typed/test_cases.py

# The first commands of README, in a folder of their own, and the tests of what depends most on the libraries' versions.
SMOKE := tests/unit/models
smoke: $(VENV)/.stamp-test
	@$(BIN)/python --version
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	export PATH="$(CURDIR)/$(BIN):$$PATH" MLFLOW_TRACKING_URI="sqlite:///$$folder/mlflow.db"; \
	cd "$$folder"; \
	mlflow run "$(CURDIR)" --env-manager local --experiment-name tipcast -P data.rows=20000 -P tracking.register=tipcast; \
	tipcast train data.rows=20000; \
	tipcast sweep search=tpe search.trials=4 data.rows=20000; \
	tipcast prepare data=sample data.months=2019-01..2019-01 data.rows=20000 out=months/; \
	tipcast score model_uri=models:/tipcast/1 input='months/*.parquet' output=scored/; \
	ls scored/*.parquet
	@$(PYTEST) $(or $(TESTS),$(SMOKE))

lint: $(VENV)/.stamp-test
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(VENV)/.stamp-test
	@$(BIN)/mypy

rooms: $(VENV)/.stamp-test
	@PYTHONPATH=src $(BIN)/lint-imports --no-cache

python:
	@$(FIND)

$(VENV)/bin/python:
	@python=$$($(FIND)) || { \
	  echo 'tipcast needs Python $(PYTHONS) with the venv module (Debian: apt-get install python3-venv);' \
	    'found none in PATH and $(PYENV_ROOT). Set PYTHON=/path/to/python.' >&2; exit 1; \
	}; \
	echo "making $(VENV) with $$("$$python" --version)"; "$$python" -m venv $(VENV)

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
	@rm -rf $(VENV) .venv-3.1? build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
