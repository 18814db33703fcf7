# Everything here works on a machine that has CPython >= 3.11 and make: the first target that needs packages creates
# .venv and installs them. Two stamps keep `make demo` from installing the developer's tools. Name another interpreter
# with `make PYTHON=/path/to/python3.12 test`; it matters when .venv is created, `make clean` starts afresh.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOAK_PROGRAMS ?= 20000
FUZZ_CONNECTIONS ?= 400000
# So many tests run at once: two for each core, since many wait for processes, and no more, since each worker takes seconds
# to import all tests. Fast tests wait for nothing. A file's tests stay together, as they share servers,
# and a browser; files go to the workers as tests/conftest.py sorts them, the longest first.
CORES := $(shell getconf _NPROCESSORS_ONLN)
FAST_WORKERS ?= $(shell echo $$(($(CORES) < 8 ? $(CORES) : 8)))
TEST_WORKERS ?= $(shell echo $$(($(FAST_WORKERS) * 2)))
FAST := not real_time and not slow and not soak
# A worker that dies ends the run: with files kept together, the others wait for ever for the rest of its file.
BY_FILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
IN_PARALLEL := --numprocesses $(TEST_WORKERS) $(BY_FILE)

# The tests start a thousand interpreters, which would each compile the library and, in pytest, the tests anew.
unexport PYTHONDONTWRITEBYTECODE

# What checks the sources runs beside the tests, which speak as they go; it says what it has to say all at once. The
# make of macOS is too old to hold output back.
BESIDE := --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

VENV_STAMP := $(VENV)/.created
DEMO_STAMP := $(VENV)/.demo-installed
DEV_STAMP := $(VENV)/.dev-installed

# Ray is 240 MB and does not come for every new CPython at once, so no other target needs it.
RAY_VENV := .venv-ray
RAY_STAMP := $(RAY_VENV)/.ray-installed

LOWEST_VENV := .venv-lowest
LOWEST_STAMP := $(LOWEST_VENV)/.lowest-installed

# All but Ray, which pins much of its own, and the demo.
RUN_TIME_EXTRAS := serve client bodies uvloop reload cache plot top gpu otel

FREE_THREADED_VENV := .venv-free-threaded
FREE_THREADED_STAMP := $(FREE_THREADED_VENV)/.installed

PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.peers-installed
PEERS := benchmarks/http_peers/requirements.txt

.PHONY: help demo test check lint types docs checked-docs pytest fast-pytest test-ray test-lowest test-free-threaded soak fuzz bench bench-peers \
	nox release-check image-check constraints changelog format clean

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_STAMP) ## install what the demo needs and serve its two models
	@exec $(BIN)/python -m examples.demo

test: $(DEV_STAMP) ## lint, types, docs (warnings are errors) and tests
	@$(MAKE) $(BESIDE) pytest lint types checked-docs

check: $(DEV_STAMP) ## lint, types, and the tests that need neither the real clock nor seconds: within a minute
	@$(MAKE) $(BESIDE) fast-pytest lint types

lint: $(DEV_STAMP) ## ruff: rules and formatting
# Where an import is from depends on what files there are, which the cache of a file does not see.
	@echo "== ruff check"
	@$(BIN)/ruff check --no-cache .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .

types: $(DEV_STAMP) ## mypy and pyright, both strict
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== pyright"
	@$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(DEV_STAMP) ## build the documentation into docs/_build/html
	@echo "== docs"
	@$(BIN)/python -m sphinx -n -W --keep-going -q -b html docs docs/_build/html

# Half as much work as writing the pages.
checked-docs: $(DEV_STAMP)
	@echo "== docs"
	@$(BIN)/python -m sphinx -n -W --keep-going -q -b dummy docs docs/_build/checked

# The plus sign lets these speak as they go.
pytest: $(DEV_STAMP)
	@echo "== pytest"
	+@$(BIN)/python -m pytest $(IN_PARALLEL)

fast-pytest: $(DEV_STAMP)
	@echo "== pytest -m '$(FAST)'"
	+@$(BIN)/python -m pytest --numprocesses $(FAST_WORKERS) $(BY_FILE) -m '$(FAST)'

test-ray: $(RAY_STAMP) ## the tests of replicas on a Ray cluster, in an environment of their own
	@$(RAY_VENV)/bin/python -m pytest tests/replicas/test_ray*.py

# What touches a dependency: event loops, HTTP, replicas. Left out is what touches none, and what goes through these again,
# at length: slow tests, conformance, examples, commands, serving.
LOWEST_TESTS := tests/batching tests/http tests/observe tests/replicas tests/testing/test_virtual_time.py

test-lowest: $(LOWEST_STAMP) ## what touches a dependency with each at its floor, on the oldest CPython, and on uvloop too
	@SHOAL_TEST_UVLOOP=1 $(LOWEST_VENV)/bin/python -m pytest $(IN_PARALLEL) -m 'not slow and not soak' $(LOWEST_TESTS)

# orjson has no wheels for it, so the server is left out.
FREE_THREADED_TESTS := tests/core tests/batching \
	-k 'not http and not leaves_takes_all and not option_names'

test-free-threaded: $(FREE_THREADED_STAMP) ## the tests of batchers on a free-threaded CPython: make PYTHON=python3.14t test-free-threaded
	@PYTHON_GIL=0 $(FREE_THREADED_VENV)/bin/python -m pytest $(IN_PARALLEL) -m 'not slow and not soak' $(FREE_THREADED_TESTS)

soak: $(DEV_STAMP) ## the long randomised runs: 20,000 programs, or SOAK_PROGRAMS=n
	@SHOAL_SOAK_PROGRAMS=$(SOAK_PROGRAMS) $(BIN)/python -m pytest -m soak

fuzz: $(DEV_STAMP) ## the long hostile runs of the server, about an hour, or FUZZ_CONNECTIONS=n for shorter ones
	@$(BIN)/python tests/hostile/report.py --connections $(FUZZ_CONNECTIONS)

bench: $(DEV_STAMP) ## the benchmarks: calls, memory, rules, forming, adaptive sizes, continuous batches, processes, images, HTTP
	@for name in inproc memory rules forming adaptive continuous process images http; do $(BIN)/python benchmarks/$$name.py; done

bench-peers: $(PEERS_STAMP) ## install the servers that the benchmark over HTTP compares with, in an environment of their own

nox: $(DEV_STAMP) ## the tests on every CPython found, and with the lowest dependency versions
	@$(BIN)/nox

release-check: $(DEV_STAMP) ## build a release into dist/, install it afresh, and run the README with it; write its bill of materials
	@bash .ci/release-check $(VENV)

image-check: $(DEV_STAMP) ## run the steps of the Dockerfile in a clean root, and the image, without Docker
	@$(BIN)/python .ci/image.py

# One file for all CPythons and systems; what this version of an extra needs, and nothing of ours.
constraints: $(DEV_STAMP) ## pin the newest versions of what the library needs at run time in constraints.txt
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url \
		--custom-compile-command 'make constraints' $(addprefix --extra ,$(RUN_TIME_EXTRAS)) \
		--output-file constraints.txt pyproject.toml

changelog: $(DEV_STAMP) ## gather the news fragments into docs/changelog.md: make changelog VERSION=1.2.0
	@$(BIN)/towncrier build --yes --version $(VERSION)

format: $(DEV_STAMP) ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

clean: ## remove the environment and everything that was built
	@rm -rf $(VENV) $(RAY_VENV) $(LOWEST_VENV) $(FREE_THREADED_VENV) $(PEERS_VENV) .nox docs/_build .hypothesis .mypy_cache .ruff_cache .pytest_cache .image dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEV_STAMP): $(VENV_STAMP) pyproject.toml
	@echo "== installing shoal[dev] into $(VENV)"
	@$(PIP) install --editable '.[dev]'
	@touch $@ $(DEMO_STAMP)

$(DEMO_STAMP): $(VENV_STAMP) pyproject.toml
	@echo "== installing shoal[demo] into $(VENV)"
	@$(PIP) install --editable '.[demo]'
	@touch $@

$(RAY_STAMP): pyproject.toml
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(RAY_VENV)
	@echo "== installing shoal[test,ray] into $(RAY_VENV)"
	@$(RAY_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[test,ray]'
	@touch $@

$(LOWEST_STAMP): pyproject.toml .ci/floors.py
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(LOWEST_VENV) oldest
	@echo "== installing shoal[test] with its lowest dependencies into $(LOWEST_VENV)"
	@$(LOWEST_VENV)/bin/python .ci/floors.py > $(LOWEST_VENV)/floors.txt
	@$(LOWEST_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[test]' \
		--constraint $(LOWEST_VENV)/floors.txt
	@touch $@

# Some of Hypothesis's versions would need Rust here, so an older one is taken.
$(FREE_THREADED_STAMP): pyproject.toml
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(FREE_THREADED_VENV)
	@echo "== installing shoal into $(FREE_THREADED_VENV)"
	@$(FREE_THREADED_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --editable . \
		'hypothesis>=6.115' 'pytest>=8.4' 'pytest-trio>=0.8' 'pytest-xdist>=3.8' --only-binary hypothesis
	@touch $@

$(PEERS_STAMP): $(PEERS)
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(PEERS_VENV)
	@echo "== installing $(PEERS) into $(PEERS_VENV)"
	@$(PEERS_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --requirement $(PEERS)
	@touch $@

$(VENV_STAMP):
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(VENV)
	@touch $@
