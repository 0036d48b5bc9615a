# A user needs two: `make run` (the demo) and `make test`. Every target makes .venv itself;
# nothing but Python >= 3.11 with pip must be there. Everything is installed under constraints.txt.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
DEMO := configs/demo-cpu.json

# The first interpreter that is new enough; `make PYTHON=/path/to/python3.12 ...` chooses another.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && { echo $$p; break; }; done)
endif

.PHONY: help setup run test check check-all lint wheel bench fmt

help:
	@echo 'make run        train the demo: two ranks, one dies, one process finishes'
	@echo 'make test       the tests, without the slow ones'
	@echo 'make check      format, lint, types, import contracts, tests, wheel (what CI runs)'
	@echo 'make check-all  the same with the slow tests'
	@echo 'make bench      measure start-up, footprint, step time, recovery and reading speed'
	@echo 'make fmt        format the code'
	@echo 'make setup      only make .venv, with the development tools'

setup: $(DEV)

# Two stamps: the demo needs no development tools. A Debian Python without ensurepip makes a venv
# without pip; the pip that is there then installs one into it.
$(RUNTIME): pyproject.toml constraints.txt
	@'$(PYTHON)' -c '$(NEW_ENOUGH)' 2>/dev/null || { echo 'Python >= 3.11 is needed,' \
		'and $(if $(PYTHON),$(PYTHON) is not one,neither python3.11 nor python3 is one).' \
		'Install one, or name it: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@test -x $(BIN)/pip || '$(PYTHON)' -m venv $(VENV) >/dev/null 2>&1 || { \
		'$(PYTHON)' -m venv --clear --without-pip $(VENV) && \
		'$(PYTHON)' -m pip --python $(BIN)/python install -q -c constraints.txt pip; }
	@echo 'installing into $(VENV); torch is large, the first time takes a while'
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[worker]'
	@touch $@

# --group needs a newer pip than the one Python 3.11 brings.
$(DEV): $(RUNTIME)
	$(BIN)/python -m pip install -q -c constraints.txt pip
	$(BIN)/python -m pip install -q -c constraints.txt --group dev
	@touch $@

run: $(RUNTIME)
	$(BIN)/humigence-supervise start $(DEMO) --fresh --log-format pretty
	@echo
	@$(BIN)/humigence-supervise status $(DEMO)
	@$(BIN)/humigence-supervise logs $(DEMO) | tail -n 1

test: $(DEV)
	$(BIN)/python -m pytest -m 'not slow'

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test wheel

check-all: lint $(DEV)
	$(BIN)/python -m pytest
	$(MAKE) wheel

# The wheel must work where nothing of this tree and no torch is: help needs neither.
wheel: $(DEV)
	rm -rf build/wheel && mkdir -p build
	$(BIN)/python -m build --wheel --outdir build/wheel . >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@set -e; room=$$(mktemp -d); trap 'rm -rf "$$room"' EXIT; wheels=$$PWD/build/wheel; \
		$(BIN)/python -m venv "$$room/venv"; \
		"$$room/venv/bin/python" -m pip install -q -c constraints.txt "$$wheels"/*.whl; \
		cd "$$room"; \
		venv/bin/humigence-supervise --help >/dev/null; \
		venv/bin/python -c 'import humigence_supervise, importlib.util, pathlib; \
			root = pathlib.Path(humigence_supervise.__file__).parent; \
			assert list(root.glob("signatures/*.toml")), "the wheel has no signatures"; \
			assert importlib.util.find_spec("torch") is None, "the supervisor must not need torch"; \
			print("wheel: installed alone, --help works without torch")'

bench: $(DEV)
	$(BIN)/python tests/bench/bench.py $(ARGS)

fmt: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
