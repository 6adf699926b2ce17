# Two commands do everything on a fresh machine: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GPU_SITE := .gpu/site
SELDOM := accelerate|aiohttp|alembic|boto3|botocore|huggingface_hub|lightning|moto|mypy|mypyc|onnxruntime|onnxscript|optuna|pip|pygments|pytorch_lightning|ray
SELDOM := $(SELDOM)|setuptools|sqlalchemy|sympy|tensorboard|torchgen|torchmetrics|_inductor|tests?|testing/_internal

.PHONY: env train test pytest lint bench test-long test-browser test-gpu clean

env: $(STAMP)

# Byte code of what is installed is made by all cores, where pip would use one; some packages hold files that are no Python.
# What few programs import, or none, is more than half of it, and is left to them.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[pyg,networkx,dev]'
	-$(BIN)/python -m compileall -q -q -j 0 -x '/($(SELDOM))/' $(VENV)/lib
	touch $(STAMP)

# The main job on the built-in graph: made, looked at, trained on; the last line says where the report is.
train: env
	$(BIN)/penstock data make synthetic-arxiv --out data/synthetic-arxiv --force
	$(BIN)/penstock data inspect data/synthetic-arxiv
	$(BIN)/penstock train --graph data/synthetic-arxiv --model sage --epochs 4 --run runs/synthetic-arxiv --force

# The type checker uses one core for more than a minute: it runs beside the tests.
test: env
	$(MAKE) --no-print-directory -j 2 lint pytest

# Byte code is made once, and not by each process that a test starts where the environment lets none be written. pytest
# keeps the tests that it has rewritten, which takes each of its processes 12 s, for the next time.
pytest: env
	$(BIN)/python -m compileall -q -j 2 src
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile

# Further whole runs on clusters of every kind, the rest of large products of cases, and ten times as many examples of every
# property: about forty minutes on two cores when it was last timed.
test-long: env
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long
	$(BIN)/python -m pytest -n 2 --dist loadfile -m hypothesis --hypothesis-profile=long

# Every kind of page in a real browser, from a phone's width to a large screen's, and what scripts do: needs chromium.
# `make test` runs these tests as well where there is one.
test-browser: env
	$(BIN)/python -m pytest tests/report/test_report_browser.py tests/report/test_gantt.py tests/service/test_queue_page.py -rs

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/type_check.py
	$(BIN)/lint-imports
	$(BIN)/python tests/structure.py

bench: env
	$(BIN)/python benchmarks/partitioning.py
	$(BIN)/python benchmarks/importing.py
	$(BIN)/python benchmarks/learnability.py
	$(BIN)/python benchmarks/sampling.py
	OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/resuming.py
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/queue_cpu.py
	$(BIN)/python benchmarks/queue_chaos.py

# Runs under the machine's own Python, which has CUDA torch, and needs neither a venv nor the network: what that Python
# lacks of penstock's dependencies may be unpacked into .gpu/site (a wheel is a zip file). Only files with GPU tests are
# read: others import partitioners and converters that a GPU machine need not have. A test is named as it fails, and after
# GPU_SECONDS the run ends with those that did not run, so that a machine's own limit hides neither. With pytest-xdist
# there, GPU_PROCESSES run at a time: two cores are left to what tests start. For a part of them in an order of one's own:
# GPU_FILES=@list.
GPU_SECONDS ?= 480
GPU_PROCESSES ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$(( cores > 4 ? cores - 2 : 2 )))
GPU_SHARED = $(shell PYTHONPATH=$(GPU_SITE) $(PYTHON) -c 'import xdist' 2> /dev/null && echo '-n $(GPU_PROCESSES)')
GPU_FILES = $(sort $(shell grep -rl --include='test_*.py' 'mark\.gpu' tests))
test-gpu:
	PYTHONUNBUFFERED=1 PYTHONPATH=src:$(GPU_SITE) timeout --foreground -s INT -k 30 $(GPU_SECONDS) \
		$(PYTHON) -m pytest -m gpu -p no:cacheprovider -p no:benchmark --tb=short $(GPU_SHARED) $(GPU_TESTS) $(GPU_FILES)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
