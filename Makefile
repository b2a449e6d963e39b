# Verbs of the project. Needs Python 3.11 or later and make; each verb makes what it needs.
#   make PYTHON=python3.12 test     picks another interpreter for the virtual environment

PYTHON ?= python3
# For the tests of what runs inside a training job. Alone and first, or pip may choose another build for something else.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := build/peers-venv
PATHS := tracetools collectors tests samples benchmarks

.DEFAULT_GOAL := help
.PHONY: help setup system peers demo test test-all check format bench golden samples clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## make .venv and install tracetools with its developer tools

# The stamp is newer than pyproject.toml exactly when the environment holds what it asks for.
$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || \
		{ echo "make: $(PYTHON) is not here; install Python 3.11 or later, or name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $$($(PYTHON) --version 2>&1) is too old; tracetools needs Python 3.11 or later: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,frameworks]'
	@touch $@

# Tests that want one of these and miss it are skipped, with this verb's name as the reason.
system: ## install the Debian packages that some tests want: Open MPI (as root)
	@command -v mpirun >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends openmpi-bin >/dev/null; }

peers: $(PEERS)/.ready ## make an environment with the tools that tests compare with

$(PEERS)/.ready: tests/peers/requirements.txt
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

demo: $(READY) ## record and analyze a pipeline-parallel training of two CPU ranks, then a ResNet on an MI300X
	@$(BIN)/torchrun --standalone --nproc-per-node 2 -m tracetools.collect --out build/demo --overwrite \
		samples/train_pipeline.py
	@$(BIN)/tracetools analyze build/demo --rank 0-1
	@echo
	@$(BIN)/tracetools analyze samples/resnet_checkpoint_mi300x

test: $(READY) ## run the tests that take seconds
	@$(BIN)/python -m pytest -m "not slow"

test-all: $(READY) $(PEERS)/.ready ## run every test, those beside HTA and Perfetto too (wants node)
	@$(BIN)/python -m pytest

check: $(READY) ## format, lint, types and the quick tests; what a change must pass
	@$(BIN)/ruff format --check $(wildcard $(PATHS))
	@$(BIN)/ruff check $(wildcard $(PATHS))
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -m "not slow"

format: $(READY) ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix-only $(wildcard $(PATHS))
	@$(BIN)/ruff format $(wildcard $(PATHS))

bench: $(READY) ## measure reading and analyzing against other tools, and what recording costs
	@$(BIN)/python benchmarks/run.py
	@$(BIN)/python -m benchmarks.module_ranges
	@$(BIN)/python -m benchmarks.collecting

golden: $(READY) ## rewrite the golden files; look at the diff before you keep it
	@$(BIN)/python -m pytest tests/report tests/test_cli.py -q --golden
	@git --no-pager diff --stat -- tests/golden

samples: $(READY) ## write the synthetic samples, derive the figures of all, and hold tracetools to them
	@$(BIN)/python -m tests.simulator te_small_batch --out samples/synthetic_te_small_batch
	@$(BIN)/python -m tests.simulator te_pipeline --out samples/synthetic_te_pipeline
	@$(BIN)/python samples/check.py
	@$(BIN)/python -m pytest tests/test_samples.py tests/test_synthetic_samples.py -q

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
