# annobench: `make help` lists what there is. Needs Python 3.11 or later and make, nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
TEST_JOBS ?= 2
PIP_OPTIONS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
ANNOBENCH := $(BIN)/annobench
RUN_OPTIONS := $(if $(PROFILE),--profile $(PROFILE)) $(if $(SEEDS),--seeds $(SEEDS)) \
	$(if $(JOBS),--jobs $(JOBS)) $(if $(RESULTS),--results '$(RESULTS)')

.PHONY: help setup lint format test demo check perf clean

help:  ## list the targets
	@sed -nE 's/^([a-z0-9%-]+):.*## (.*)$$/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| sed 's/%/N/' | awk -F'|' '{printf "%-24s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv and install everything (again only when pyproject.toml changes)

$(STAMP): pyproject.toml requirements/tested.txt requirements/learn2learn.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
		"annobench needs Python 3.11 or later, and '$(PYTHON)' is not: name one with make PYTHON=python3.12 ..." >&2; \
		exit 1; }
	@echo "Setting up $(VENV); the first time this downloads PyTorch, which may be a few gigabytes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --constraint requirements/tested.txt $(PIP_OPTIONS) --editable '.[dev]'
	@bash requirements/learn2learn.sh $(VENV) || echo "Warning: learn2learn could not be built;" \
		"few-shot methods that use it are unavailable until 'bash requirements/learn2learn.sh $(VENV)' works." >&2
	@touch $(STAMP)

lint: $(STAMP)  ## style, types, and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: $(STAMP)  ## the tests; those on real data need ANNOBENCH_DATA
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

demo: $(STAMP)  ## every table and figure on embedded data, in minutes
	@tables=$$($(call tables_named,,$(PAPER))) && set -x && \
		$(ANNOBENCH) run $$tables $(RUN_OPTIONS) --profile demo

reproduce-table%: $(STAMP)  ## every paper's Table N; PAPER= PROFILE= SEEDS= JOBS= RESULTS= narrow it
	@tables=$$($(call tables_named,table$*,$(PAPER))) && set -x && $(ANNOBENCH) run $$tables $(RUN_OPTIONS)

reproduce-fig%: $(STAMP)  ## every paper's Figure N; likewise
	@tables=$$($(call tables_named,fig$*,$(PAPER))) && set -x && $(ANNOBENCH) run $$tables $(RUN_OPTIONS)

check: $(STAMP)  ## the gate: measured numbers against leaderboards/
	$(ANNOBENCH) check --profile $(or $(PROFILE),demo)

perf: $(STAMP)  ## speed of trainer, loader, label delivery, EM and DIC against plain references
	$(BIN)/python -m benchmark.perf

clean:  ## remove .venv, caches and build output; results stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find benchmark models datamodules tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Names of the tables whose last part is $(1) (empty: any) and whose paper is $(2) (empty: any).
define select_tables
import json, sys
wanted, paper = sys.argv[1:3]
names = [entry["name"] for entry in json.load(sys.stdin)]
found = [n for n in names if wanted in ("", n.split("/")[1]) and paper in ("", n.split("/")[0])]
if not found:
    sys.exit(f"no table is called {paper or '<paper>'}/{wanted or '<table>'}; there are: {', '.join(names)}")
print(*found)
endef
export select_tables
tables_named = $(ANNOBENCH) list tables --json | $(BIN)/python -c "$$select_tables" '$(1)' '$(2)'
