# Every target sets up what it needs. `make demo` and `make test` need python3 (3.11+), python3-venv and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SAMPLE := kill_random_real_engine or sample

.PHONY: help setup demo test check torture torture-sample mission bench docs clean

help:
	@echo "make demo     set up and run a real campaign on a real engine (under 6 minutes)"
	@echo "make test     set up and run the tests"
	@echo "make check    ruff, mypy --strict, import-linter, generated docs"
	@echo "make torture  the long fault matrices"
	@echo "make mission  a real campaign, replayed on a real systemd over ssh (about 10 minutes, root)"
	@echo "make bench    the benchmarks"

# The stamps name what was installed from what; a changed pyproject installs again.
$(VENV)/.made: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[fast,demo]'
	touch $@

$(VENV)/.dev: $(VENV)/.made
	$(BIN)/python -m pip install --quiet --editable '.[fast,demo,dev]'
	touch $@

# A real llama-server and a real small model, where this machine can run them; says so where it cannot.
.demo/server.json: demo/prepare.py $(VENV)/.made
	$(BIN)/python demo/prepare.py

setup: $(VENV)/.dev .demo/server.json

demo: $(VENV)/.made .demo/server.json
	$(BIN)/python demo/run.py

test: setup
	$(BIN)/python -m pytest -n 4 --dist loadscope -m "not torture"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

torture: setup
	$(BIN)/python -m pytest -m torture

# The fixed part of it that every change must pass (.ci/run).
torture-sample: setup
	$(BIN)/python -m pytest -m torture -k "$(SAMPLE)"

# Into a folder of its own: MISSION=FOLDER.
MISSION ?= .demo/mission
mission: setup
	rm -rf $(MISSION)
	$(BIN)/python examples/qwen-mission/mission.py $(MISSION)

bench: setup
	$(BIN)/python bench/run.py

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .demo
