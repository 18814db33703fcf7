# Needs CPython >= 3.11 and make. The first target that needs packages creates .venv and installs them there. `make demo`
# installs the demo's packages only. `make PYTHON=/path/to/python3.12 test` creates .venv with another interpreter; run
# `make clean` before that if .venv exists.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check --quiet
SOAK_PROGRAMS ?= 20000
FUZZ_CONNECTIONS ?= 400000

# Every extra but `ray`: Ray takes 240 MB, and is late for each new CPython.
EXTRAS := serve,client,bodies,uvloop,reload,cache,parquet,plot,progress,gpu,otel
DEMO_EXTRAS := serve,plot,client,reload

# Two workers for each core, since many tests wait for processes; each worker takes seconds to import all tests, so no
# more. Fast tests do not wait, so they get one worker for each core.
CORES := $(shell getconf _NPROCESSORS_ONLN)
FAST_WORKERS ?= $(shell echo $$(($(CORES) < 8 ? $(CORES) : 8)))
TEST_WORKERS ?= $(shell echo $$(($(FAST_WORKERS) * 2)))
FAST := not real_time and not slow and not second_loop and not soak
EACH := not slow and not second_loop and not soak
REST := (slow or second_loop) and not soak
# The tests of a file run in one worker, since they share servers and a browser. tests/conftest.py sorts the files, the
# longest first. A worker that dies must end the run: the other workers would wait forever for its file.
BY_FILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
IN_PARALLEL := --numprocesses $(TEST_WORKERS) $(BY_FILE)

# The tests start a thousand interpreters. Without bytecode files, each would compile the library and pytest again.
unexport PYTHONDONTWRITEBYTECODE

# Linters run beside the tests, and print their output in one block each, where make supports that (macOS's does not).
BESIDE := --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

VENV_STAMP := $(VENV)/.created
DEMO_STAMP := $(VENV)/.demo-installed
DEV_STAMP := $(VENV)/.dev-installed
RAY_VENV := .venv-ray
MODELS_VENV := .venv-models
LOWEST_VENV := .venv-lowest
FREE_THREADED_VENV := .venv-free-threaded
PEERS_VENV := .venv-peers
PEERS := benchmarks/http_peers/requirements.txt
# An editable install records the version, so a new version needs a new install.
INSTALLED_FROM := pyproject.toml src/shoal/version.py .ci/create-venv

.PHONY: help demo check test test-slow format docs test-lowest test-ray soak bench release-check clean \
	test-models lint types checked-docs pytest fast-pytest test-base test-free-threaded fuzz bench-peers image-check

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_STAMP) ## serve two models, with and without batching, and open a live page
	@exec $(BIN)/python -m examples.demo

check: $(DEV_STAMP) ## for each change: lint, types and each fast test once, within a minute
	@$(MAKE) $(BESIDE) fast-pytest lint types

test: $(DEV_STAMP) ## for each commit: lint, types, docs and most tests, within four minutes
	@$(MAKE) $(BESIDE) pytest lint types checked-docs

test-slow: $(DEV_STAMP) ## the other tests: browsers, long runs, and asyncio for what is above the event loops
	+@$(BIN)/python -m pytest $(IN_PARALLEL) -m '$(REST)'

format: $(DEV_STAMP) ## fix and format the code with ruff
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

docs: $(DEV_STAMP) ## build the documentation in docs/_build/html
	@echo "== docs"
	@$(BIN)/python -m sphinx -n -W --keep-going -q -b html docs docs/_build/html

# Tests of code that touches a dependency: event loops, HTTP, replicas. The other tests touch none, or repeat these at
# length: slow tests, conformance, examples, commands, serving. What a test calls of a dependency hardly depends on its
# parameters, so each runs with one set of them.
LOWEST_TESTS := tests/batching tests/http tests/server tests/front_ends tests/observe tests/replicas tests/testing/test_virtual_time.py

test-lowest: $(LOWEST_VENV)/.installed ## tests with the lowest dependencies on the oldest CPython, on uvloop too
	@SHOAL_TEST_UVLOOP=1 SHOAL_TEST_EACH_ONCE=1 $(LOWEST_VENV)/bin/python -m pytest $(IN_PARALLEL) -m 'not slow and not soak' $(LOWEST_TESTS)

# With RAY_EACH='not slow and not second_loop' it takes three minutes in place of ten.
RAY_EACH ?= not soak

test-ray: $(RAY_VENV)/.installed ## tests of replicas on a Ray cluster, and of batches inside Ray and Dask
	@$(RAY_VENV)/bin/python -m pytest -m '$(RAY_EACH)' tests/replicas/test_ray*.py tests/examples/test_inside_ray_and_dask.py

soak: $(DEV_STAMP) ## long randomised runs: 20,000 programs, or SOAK_PROGRAMS=n
	@SHOAL_SOAK_PROGRAMS=$(SOAK_PROGRAMS) $(BIN)/python -m pytest -m soak

bench: $(DEV_STAMP) ## the benchmarks
	@for name in inproc memory rules forming adaptive continuous process images http; do $(BIN)/python benchmarks/$$name.py; done

release-check: $(DEV_STAMP) ## build a release in dist/, install it, and run the README with it
	@bash .ci/release-check $(VENV)

clean: ## remove the environments and everything that was built
	@rm -rf $(VENV) $(RAY_VENV) $(MODELS_VENV) $(LOWEST_VENV) $(FREE_THREADED_VENV) $(PEERS_VENV) docs/_build .hypothesis .mypy_cache .ruff_cache .pytest_cache .image dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Targets that are not in the help: parts of the above, and what few need.

lint: $(DEV_STAMP)
# Sorting imports depends on which files exist; ruff's cache of a file does not notice that.
	@echo "== ruff check"
	@$(BIN)/ruff check --no-cache .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .

types: $(DEV_STAMP)
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== pyright"
	@$(BIN)/pyright --pythonpath $(BIN)/python

# Finds the same errors as `docs` in half the time, since it writes no pages.
checked-docs: $(DEV_STAMP)
	@echo "== docs"
	@$(BIN)/python -m sphinx -n -W --keep-going -q -b dummy docs docs/_build/checked

# The plus sign exempts pytest from --output-sync: its progress is shown at once.
pytest: $(DEV_STAMP)
	@echo "== pytest -m '$(EACH)'"
	+@$(BIN)/python -m pytest $(IN_PARALLEL) -m '$(EACH)'

fast-pytest: $(DEV_STAMP)
	@echo "== pytest -m '$(FAST)'"
	+@SHOAL_TEST_EACH_ONCE=1 $(BIN)/python -m pytest --numprocesses $(FAST_WORKERS) $(BY_FILE) -m '$(FAST)'

# The wheel without extras on each CPython found, with newest and lowest dependencies.
test-base: $(VENV_STAMP)
	@bash .ci/base $(BIN)/python

# orjson has no wheels for free-threaded CPythons, so the server is not tested: make PYTHON=python3.14t test-free-threaded
FREE_THREADED_TESTS := tests/core tests/batching \
	-k 'not http and not leaves_takes_all and not option_names'

test-free-threaded: $(FREE_THREADED_VENV)/.installed
	@PYTHON_GIL=0 $(FREE_THREADED_VENV)/bin/python -m pytest $(IN_PARALLEL) -m '$(EACH)' $(FREE_THREADED_TESTS)

# The real models of examples/models, with PyTorch, which brings 2 GB.
test-models: $(MODELS_VENV)/.installed
	@$(MODELS_VENV)/bin/python -m pytest tests/examples/test_real_models.py

# Attacks the server for about an hour; FUZZ_CONNECTIONS=n shortens it.
fuzz: $(DEV_STAMP)
	@$(BIN)/python tests/hostile/report.py --connections $(FUZZ_CONNECTIONS)

# Installs the other servers that `benchmarks/http.py` compares with.
bench-peers: $(DEV_STAMP) $(PEERS_VENV)/.installed
	@$(BIN)/python benchmarks/peers.py

# Runs the steps of the Dockerfile, and the image, without Docker; needs root and debootstrap.
image-check: $(DEV_STAMP)
	@$(BIN)/python .ci/image.py

$(VENV_STAMP): .ci/create-venv
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(VENV)
	@touch $@

$(DEV_STAMP): $(VENV_STAMP) $(INSTALLED_FROM)
	@echo "== installing shoal and the developers' tools in $(VENV)"
	@$(BIN)/python $(PIP) install --editable '.[$(EXTRAS)]' --group dev
	@touch $@ $(DEMO_STAMP)

$(DEMO_STAMP): $(VENV_STAMP) $(INSTALLED_FROM)
	@echo "== installing shoal and the demo's packages in $(VENV)"
	@$(BIN)/python $(PIP) install --editable '.[$(DEMO_EXTRAS)]' --group demo
	@touch $@

$(RAY_VENV)/.installed: $(INSTALLED_FROM)
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(RAY_VENV)
	@echo "== installing shoal and Ray in $(RAY_VENV)"
	@$(RAY_VENV)/bin/python $(PIP) install --editable '.[$(EXTRAS),ray]' --group test --group inside
	@touch $@

$(MODELS_VENV)/.installed: $(INSTALLED_FROM)
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(MODELS_VENV)
	@echo "== installing shoal, PyTorch and Transformers in $(MODELS_VENV)"
	@$(MODELS_VENV)/bin/python $(PIP) install --editable '.[$(EXTRAS)]' --group test --group models --group large-models
	@touch $@

$(LOWEST_VENV)/.installed: $(INSTALLED_FROM) .ci/floors.py
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(LOWEST_VENV) oldest
	@echo "== installing shoal with its lowest dependencies in $(LOWEST_VENV)"
	@$(LOWEST_VENV)/bin/python .ci/floors.py > $(LOWEST_VENV)/floors.txt
	@$(LOWEST_VENV)/bin/python $(PIP) install --editable '.[$(EXTRAS)]' --group test --constraint $(LOWEST_VENV)/floors.txt
	@touch $@

# Some versions of Hypothesis have no wheel for these CPythons, and would need Rust.
$(FREE_THREADED_VENV)/.installed: $(INSTALLED_FROM)
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(FREE_THREADED_VENV)
	@echo "== installing shoal in $(FREE_THREADED_VENV)"
	@$(FREE_THREADED_VENV)/bin/python $(PIP) install --editable . \
		'hypothesis>=6.115' 'pytest>=8.4' 'pytest-trio>=0.8' 'pytest-xdist>=3.8' --only-binary hypothesis
	@touch $@

$(PEERS_VENV)/.installed: $(PEERS) $(INSTALLED_FROM)
	@PYTHON='$(PYTHON)' bash .ci/create-venv $(PEERS_VENV)
	@echo "== installing $(PEERS) in $(PEERS_VENV)"
	@$(PEERS_VENV)/bin/python $(PIP) install --editable . --requirement $(PEERS)
	@touch $@
