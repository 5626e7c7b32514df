# Two commands, nothing else before them: `make demo` trains, `make test` tests. Both make .venv at first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# uv installs torch in a fraction of pip's time. It compiles bytecode only when asked; without bytecode each process compiles
# again where PYTHONDONTWRITEBYTECODE is set (docs/decisions.md).
INSTALL := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt
# PyTorch's CPU builds: 190 MB instead of gigabytes of CUDA. Asked once, briefly; `make TORCH_INDEX_URL= ...` skips it.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
TORCH_INDEX_TIMEOUT ?= 5
# A separate environment for tools: their dependencies are no part of a worker.
TOOLS := build/tools
# An environment with the packages of the image and torch's CPU build; PIP_FIND_LINKS may name a folder with its wheel.
CPU := build/cpu
# A release with known vulnerabilities: a mirror that shows none has no list of them.
AUDIT_URL ?= https://pypi.org/pypi/pip/23.2.1/json

.DEFAULT_GOAL := help
.PHONY: help demo unit test suite fuzz test-all coverage mutations check lint types rules schemas docs figures sbom audit bench job bench-calibration bench-fleet bench-page import-profile faults containers clean

help:  ## List the commands.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

demo: $(VENV)/.demo  ## Train on real digits: one job from end to end.
	@$(BIN)/preflight demo

# `test` uses one fuzzing seed, `test-all` a random one; a failure prints its FUZZ_SEED.
FUZZ_SECONDS ?= 60
FUZZ_ALL_SECONDS ?= 3600

# COVERAGE=1 measures coverage, in the child processes of tests marked `covers_children` too, and fails below the bound of
# pyproject.toml.
PYTEST = $(if $(COVERAGE),$(BIN)/coverage run -m pytest,$(BIN)/pytest)

# pytest keeps the rewritten tests as bytecode, which saves 8 s of each process from the second run on; an empty variable
# lets it.
unit: $(VENV)/.dev  ## Run the tests that need neither Redis nor torch, in under 20 s.
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q tests/unit --numprocesses 2 -m "not torch and not redis and not process and not browser and not slow"

test: rules suite fuzz  ## Run the tests against a real Redis, all but the slow ones, with the same generated data each time.

suite: $(VENV)/.dev
	$(if $(COVERAGE),$(BIN)/coverage erase)
	PYTHONDONTWRITEBYTECODE= $(PYTEST) tests/acceptance tests/unit tests/integration --numprocesses 3 --dist worksteal -m "not slow" --hypothesis-profile "the same each time"
	$(if $(COVERAGE),$(BIN)/coverage combine --quiet && $(BIN)/coverage report)

# Its worker processes wait most of the time: beside `suite` it takes what that leaves (make --jobs 2).
fuzz: $(VENV)/.dev
	FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_SEED=$(or $(FUZZ_SEED),20) $(BIN)/pytest tests/fuzz -m "not slow"

test-all: $(VENV)/.dev  ## Run all tests, the slow ones too, and measure coverage.
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests/acceptance
	$(BIN)/coverage run -m pytest tests/repository tests/unit tests/integration --numprocesses 2 --dist worksteal
	FUZZ_SECONDS=$(FUZZ_ALL_SECONDS) $(BIN)/pytest tests/fuzz
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

COVERAGE_PYTHON ?= python3.13
coverage:  ## Measure the lines that `make suite` runs, by sys.monitoring (COVERAGE_PYTHON, 3.12 or newer); less than 92 % fails.
	COVERAGE_CORE=sysmon $(MAKE) suite COVERAGE=1 VENV=build/coverage PYTHON=$(COVERAGE_PYTHON)

mutations: $(VENV)/.dev  ## Break the code under the most important promises, line by line, and see a test fail for each.
	PYTHONPATH=tests $(BIN)/python -m tools.mutations

check: lint types rules  ## Lint, types, and the rules of the repository: imports, YAML, pages.

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

rules: $(VENV)/.dev
	$(BIN)/pytest -q tests/repository

schemas: $(VENV)/.dev  ## Write docs/schemas/ from client/preflight/wire/ and the routes.
	$(BIN)/python -m worker.web.documents.schemas

docs: $(VENV)/.dev  ## Write docs/reference/configuration.md from worker/config/settings.py.
	$(BIN)/python -m worker.config.docs

sbom: $(VENV)/.demo $(TOOLS)/.made  ## Write build/sbom.json: a worker's packages, as CycloneDX.
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file build/sbom.json $(BIN)/python

audit: $(TOOLS)/.made  ## Check for known vulnerabilities in constraints.txt.
	@if ! $(TOOLS)/bin/python -c "import json, urllib.request as u; \
	  json.load(u.urlopen('$(AUDIT_URL)', timeout=5))['vulnerabilities'][0]" 2>/dev/null; \
	then echo "nothing was audited: the list of known vulnerabilities cannot be reached ($(AUDIT_URL) shows none)"; \
	else $(TOOLS)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip; fi

# Benchmarks share modules with the tests.
bench job bench-calibration bench-page: export PYTHONPATH := tests

BENCH ?=
bench: $(VENV)/.bench $(CPU)/.made  ## Measure the figures of README.md and docs/benchmarks.md in 3.5 hours; BENCH="--minutes 30" a piece, the next call continues.
	$(BIN)/python -m tools.bench.measure $(BENCH)

figures: $(VENV)/.dev  ## Write the tables of README.md and docs/ from tools/bench/results/.
	$(BIN)/python -m tools.bench.figures

import-profile: $(VENV)/.dev  ## Print the slowest imports of each way in; fails when one brings what it must not.
	$(BIN)/python -m tools.bench.imports

REVISION ?= f868e4d
job: $(VENV)/.dev $(CPU)/.made  ## Measure jobs from enqueue to result beside an earlier version, and what 200 jobs leave in a worker.
	$(BIN)/python -m tools.bench.job --revision $(REVISION) --cpu-python $(CPU)/bin/python
	$(BIN)/python -m tools.bench.job --many 200

CALIBRATION ?=
bench-calibration: $(VENV)/.dev  ## Measure what calibration promises; CALIBRATION=0.5cpu only these cells, an interrupted run continues.
	$(BIN)/python -m tools.bench.calibration $(CALIBRATION)

FLEET ?=
bench-fleet: $(VENV)/.dev  ## Measure a thousand workers on one Redis; FLEET="idle latency restart jobs" only these parts.
	$(BIN)/python -m tools.bench.fleet $(FLEET)

PAGE ?=
bench-page: $(VENV)/.dev  ## Measure the page in a browser; PAGE="lighthouse comparison first-visit" only these parts.
	$(BIN)/python -m tools.bench.page $(PAGE)

ROUNDS ?= 28
SEED ?= 20
FAULTS ?= --parallel 2 --stock 1
faults: $(VENV)/.dev build/stock/.made  ## Try real faults, on the newest stock RQ too, and write docs/faults.md; ROUNDS=1000 runs more, an interrupted run continues.
	PYTHONPATH=tests $(BIN)/python -m tools.faults --rounds $(ROUNDS) --seed $(SEED) --stock-python build/stock/bin/python --write docs/faults.md $(FAULTS)

DOCKER ?= docker
CONTAINERS ?=
containers: $(VENV)/.dev  ## Try real containers, on the MNIST in PREFLIGHT_HOST_DATA=; CONTAINERS="limits scale" only these parts.
	DOCKER=$(DOCKER) $(BIN)/python -m tools.bench.containers $(CONTAINERS)

clean:  ## Remove .venv and caches.
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*

# --- installation; a stamp is older than what it was made from when something has to be installed again
$(VENV)/.torch: constraints.txt
	@$(PYTHON) -I client/preflight/redis/server/program.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt uv
	@if [ -n "$(TORCH_INDEX_URL)" ] && $(BIN)/python -c "import urllib.request as u; \
	  u.urlopen('$(TORCH_INDEX_URL)/torch/', timeout=$(TORCH_INDEX_TIMEOUT))" 2>/dev/null; \
	then echo "torch from $(TORCH_INDEX_URL): some 190 MB"; \
	  $(INSTALL) --default-index $(TORCH_INDEX_URL) torch torchvision; \
	else echo "torch from the default index (PyTorch's CPU index is not reachable): up to 5 GB with CUDA, and 2 minutes"; \
	  $(INSTALL) torch torchvision; fi
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml client/pyproject.toml
	$(INSTALL) -e ./client -e '.[train,demo]'
	@$(BIN)/python -m compileall -q calibration client/preflight training worker
	@touch $@

$(TOOLS)/.made: Makefile
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

$(CPU)/.made: Makefile
	$(PYTHON) -m venv $(CPU)
	$(CPU)/bin/pip install --quiet $(if $(PIP_FIND_LINKS),,$(addprefix --extra-index-url=,$(TORCH_INDEX_URL))) torch==2.13.0+cpu -e ./client -e '.[train,report,web,s3]' scikit-learn
	@touch $@

# The newest RQ before whatever this service runs on; everything else is that of .venv.
build/stock/.made: $(VENV)/.dev Makefile
	$(PYTHON) -m venv build/stock
	build/stock/bin/pip install --quiet --upgrade rq
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  "$$(build/stock/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/behind.pth"
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(INSTALL) -e ./client -e '.[bench]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo tests/system.sh tests/support/network/pyproject.toml
	$(INSTALL) -e ./client -e '.[train,demo,dev]' ./tests/support/network
	@tests/system.sh
	@touch $@
