# Every target is one command of the package; CONFIG=, RUN= and ARGS= pass through. `make help` lists them.
CONFIG ?= configs/digits.yaml
PYTHON ?= python3
BIN := .venv/bin
RUN_PYTHON := $(BIN)/python -m template

.DEFAULT_GOAL := help
.PHONY: help setup train check resume evaluate predict report export test test-slow bench lint rename clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 12

setup: .venv/complete  ## make the virtual environment in .venv; UV=1 uses uv

.venv/complete: pyproject.toml
	@echo "Setting up .venv (torch is large: some minutes the first time) ..."
ifdef UV
	uv venv --allow-existing .venv
	uv pip install --python $(BIN)/python -e '.[dev]'
else
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[dev]'
endif
	@touch $@

train: .venv/complete  ## train and test: CONFIG=configs/digits.yaml ARGS="--seed 1"
	$(RUN_PYTHON) fit --config $(CONFIG) $(ARGS)

resume: .venv/complete  ## continue a run where it stopped: RUN=runs/... ARGS="--trainer.max_epochs 60"
	$(RUN_PYTHON) fit --resume $(RUN) $(ARGS)

check: .venv/complete  ## find trouble before a run, in under two minutes: CONFIG=configs/digits.yaml
	$(RUN_PYTHON) check --config $(CONFIG) $(ARGS)

evaluate: .venv/complete  ## metrics of a run's best checkpoint: RUN=runs/...
	$(RUN_PYTHON) evaluate $(RUN) $(ARGS)

predict: .venv/complete  ## classes of images: RUN=runs/... ARGS="photos/"
	$(RUN_PYTHON) predict $(RUN) $(ARGS)

report: .venv/complete  ## pictures and tables of a run, or several compared: RUN="runs/... runs/..."
	$(RUN_PYTHON) report $(RUN) $(ARGS)

export: .venv/complete  ## a checked deployment file: RUN=runs/... ARGS="--format onnx"
	$(RUN_PYTHON) export $(RUN) $(ARGS)

test: .venv/complete  ## the fast tests
	$(BIN)/python -m pytest -q $(ARGS)

test-slow: .venv/complete  ## the tests on real data, some minutes
	$(BIN)/python -m pytest -q -m slow $(ARGS)

BENCHMARKS := index reading end_to_end overhead bookkeeping bench_training

bench: .venv/complete  ## measure, each ratio with its bound; fails where one is missed: BENCHMARKS="index reading"
	@failed=0; for section in $(BENCHMARKS); do \
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/benchmarks/$$section.py || failed=1; done; exit $$failed

lint: .venv/complete  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

rename: .venv/complete  ## turn this clone into your project: NAME=my_project
	$(BIN)/python -m template.rename $(NAME)

clean:  ## remove caches and the virtual environment; data/ and runs/ stay
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
