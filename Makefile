# Two commands, nothing else before them: `make demo` trains, `make test` tests. Both make .venv at first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# uv takes far less time than pip for torch and its like, which is most of what the first `make` takes; it compiles only
# when asked. Where PYTHONDONTWRITEBYTECODE is set, each process would do that anew (python -m bench.startup).
INSTALL := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt
# PyTorch's CPU builds: 190 MB instead of gigabytes of CUDA. Asked once, briefly; `make TORCH_INDEX_URL= ...` skips it.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
TORCH_INDEX_TIMEOUT ?= 5
# Tools in an environment of their own: what they depend on is no part of a worker.
TOOLS := build/tools
# What users have: redis imports OpenTelemetry where it finds it, and tools for developers bring it.
USERS := build/users
# A release with known vulnerabilities: where it shows none, there is a mirror without the list of them.
AUDIT_URL ?= https://pypi.org/pypi/pip/23.2.1/json

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check lint types architecture schemas docs sbom audit bench bench-speed bench-calibration import-profile faults containers clean

help:  ## List the commands.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

demo: $(VENV)/.demo  ## Train on real digits: a Redis, a worker and a job of its own.
	@$(BIN)/preflight demo

# `test` draws the same storms each time, `test-all` others; FUZZ_SEED=, which a failure names, brings one back.
FUZZ_SECONDS ?= 60
FUZZ_ALL_SECONDS ?= 3600

test: $(VENV)/.dev  ## Run the tests against a real Redis, all but the slow ones, with the same generated data each time.
	$(BIN)/pytest tests/acceptance -m "not slow" --hypothesis-profile "the same each time"
	$(BIN)/pytest tests/repository tests/unit tests/integration --numprocesses 3 --dist worksteal -m "not slow" --hypothesis-profile "the same each time"
	FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_SEED=$(or $(FUZZ_SEED),20) $(BIN)/pytest tests/fuzz

test-all: $(VENV)/.dev  ## Run all tests, the slow ones too, and count what they cover: watched, each import of torch takes a third longer.
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests/acceptance
	$(BIN)/coverage run -m pytest tests/repository tests/unit tests/integration --numprocesses 2 --dist worksteal
	FUZZ_SECONDS=$(FUZZ_ALL_SECONDS) $(BIN)/pytest tests/fuzz
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: lint types architecture  ## Lint, types and the architecture.

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

architecture: $(VENV)/.dev
	$(BIN)/pytest -q tests/repository/test_architecture.py

schemas: $(VENV)/.dev  ## Write docs/schemas/ from worker/wire/__init__.py and the routes.
	$(BIN)/python -m worker.wire.json_schema

docs: $(VENV)/.dev  ## Write docs/configuration.md from worker/config/settings.py.
	$(BIN)/python -m worker.config.docs

sbom: $(VENV)/.demo $(TOOLS)/.made  ## Write build/sbom.json: what a worker consists of, as CycloneDX.
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file build/sbom.json $(BIN)/python

audit: $(TOOLS)/.made  ## Look for known vulnerabilities in constraints.txt.
	@if ! $(TOOLS)/bin/python -c "import json, urllib.request as u; \
	  json.load(u.urlopen('$(AUDIT_URL)', timeout=5))['vulnerabilities'][0]" 2>/dev/null; \
	then echo "nothing was audited: the list of known vulnerabilities cannot be reached ($(AUDIT_URL) shows none)"; \
	else $(TOOLS)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip; fi

# Benchmarks share modules with the tests.
bench bench-speed bench-calibration: export PYTHONPATH := tests

bench: $(VENV)/.dev  ## Print the figures of the README.
	@$(MAKE) VENV=$(USERS) $(USERS)/.demo
	$(USERS)/bin/python -m bench.footprint
	$(BIN)/python -m bench.startup
	$(BIN)/python -m bench.training
	$(BIN)/python -m bench.allocator
	$(BIN)/python -m bench.parity
	$(BIN)/python -m bench.orthogonal
	$(BIN)/python -m bench.last
	$(BIN)/python -m bench.writing
	$(BIN)/python -m bench.checkpoints
	$(BIN)/python -m bench.report
	$(BIN)/python -m bench.web
	$(BIN)/python -m bench.listing
	@$(MAKE) bench-speed

SPEED ?=
bench-speed: $(VENV)/.bench  ## Measure training beside its peers and the machine's limits; SPEED="roof data" only these parts.
	$(BIN)/python -m bench.speed $(SPEED)

import-profile: $(VENV)/.dev  ## Print the slowest imports of each way in; fails when one brings what it must not.
	$(BIN)/python -m bench.imports

CALIBRATION ?=
bench-calibration: $(VENV)/.dev  ## Measure what calibration promises; CALIBRATION="grid naive" only these parts.
	$(BIN)/python -m bench.calibration $(CALIBRATION)

ROUNDS ?= 28
SEED ?= 20
FAULTS ?= --parallel 2 --stock 1
faults: $(VENV)/.dev build/stock/.made  ## Try real faults, on the newest stock RQ too, and write docs/faults.md; ROUNDS=1000 tries as many, and goes on where it was interrupted.
	PYTHONPATH=tests $(BIN)/python -m faults --rounds $(ROUNDS) --seed $(SEED) --stock-python build/stock/bin/python --write docs/faults.md $(FAULTS)

DOCKER ?= docker
CONTAINERS ?=
containers: $(VENV)/.dev  ## Try real containers, on the MNIST in PREFLIGHT_HOST_DATA=; CONTAINERS="limits scale" only these parts.
	DOCKER=$(DOCKER) $(BIN)/python -m bench.containers $(CONTAINERS)

clean:  ## Remove .venv and caches.
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*

# --- installation; a stamp is older than what it was made from when something has to be installed again
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt uv
	@if [ -n "$(TORCH_INDEX_URL)" ] && $(BIN)/python -c "import urllib.request as u; \
	  u.urlopen('$(TORCH_INDEX_URL)/torch/', timeout=$(TORCH_INDEX_TIMEOUT))" 2>/dev/null; \
	then echo "torch from $(TORCH_INDEX_URL)"; \
	  $(INSTALL) --default-index $(TORCH_INDEX_URL) torch torchvision; \
	else echo "torch from the default index (PyTorch's CPU index is not reachable)"; \
	  $(INSTALL) torch torchvision; fi
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(INSTALL) -e '.[train,demo]'
	@$(BIN)/python -m compileall -q calibration training worker
	@touch $@

$(TOOLS)/.made: Makefile
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

# The newest RQ before whatever this service runs on; everything else is that of .venv.
build/stock/.made: $(VENV)/.dev Makefile
	$(PYTHON) -m venv build/stock
	build/stock/bin/pip install --quiet --upgrade rq
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  "$$(build/stock/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/behind.pth"
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(INSTALL) -e '.[bench]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo tests/system.sh
	$(INSTALL) -e '.[train,demo,dev]'
	@tests/system.sh
	@touch $@
