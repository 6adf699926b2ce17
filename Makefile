# Two commands do everything on a fresh machine: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: env train test lint bench test-gpu clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[pyg,networkx,dev]'
	touch $(STAMP)

# Makes the built-in graph and cuts it. Training does not exist yet, and this says so.
train: env
	$(BIN)/penstock data make synthetic-arxiv --out data/synthetic-arxiv --force
	$(BIN)/penstock data inspect data/synthetic-arxiv
	$(BIN)/penstock partition data/synthetic-arxiv --parts 4 --trainers 2 --out data/synthetic-arxiv-4 --force
	@echo "Stopped after cutting the graph: training is not built yet."

test: env lint
	$(BIN)/python -m pytest

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: env
	$(BIN)/python benchmarks/partitioning.py
	$(BIN)/python benchmarks/importing.py
	$(BIN)/python benchmarks/learnability.py
	$(BIN)/python benchmarks/sampling.py

# Runs under the machine's own Python, which has CUDA torch.
test-gpu:
	@PYTHONPATH=src $(PYTHON) -m pytest -m gpu; code=$$?; \
	if [ $$code -eq 5 ]; then echo "There are no GPU tests yet."; else exit $$code; fi

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
