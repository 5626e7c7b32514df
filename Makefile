# Two commands, nothing else before them: `make demo` trains, `make test` tests. Both make .venv at first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# PyTorch's CPU builds: 190 MB instead of gigabytes of CUDA. Asked once, briefly; `make TORCH_INDEX_URL= ...` skips it.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
TORCH_INDEX_TIMEOUT ?= 5

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types architecture schemas bench clean

help:  ## List the commands.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

demo: $(VENV)/.demo  ## Train on real digits: a Redis, a worker and a job of its own.
	@$(BIN)/preflight demo

test: $(VENV)/.dev  ## Run all tests against a real Redis, with coverage.
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: lint types architecture  ## Lint, types and the architecture.

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

architecture: $(VENV)/.dev
	$(BIN)/pytest -q tests/unit/test_architecture.py

schemas: $(VENV)/.dev  ## Write docs/schemas/ from worker/wire.py.
	$(BIN)/python -m worker.schemas

bench: $(VENV)/.dev  ## Print the figures of the README.
	$(BIN)/python -m bench.footprint
	$(BIN)/python -m bench.training
	$(BIN)/python -m bench.allocator
	$(BIN)/python -m bench.parity

clean:  ## Remove .venv and caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*

# --- installation; a stamp is older than what it was made from when something has to be installed again
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	@if [ -n "$(TORCH_INDEX_URL)" ] && $(BIN)/python -c "import urllib.request as u; \
	  u.urlopen('$(TORCH_INDEX_URL)/torch/', timeout=$(TORCH_INDEX_TIMEOUT))" 2>/dev/null; \
	then echo "torch from $(TORCH_INDEX_URL)"; \
	  $(BIN)/pip install --quiet -c constraints.txt --index-url $(TORCH_INDEX_URL) torch torchvision; \
	else echo "torch from the default index (PyTorch's CPU index is not reachable)"; \
	  $(BIN)/pip install --quiet -c constraints.txt torch torchvision; fi
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet -c constraints.txt -e '.[train,demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/pip install --quiet -c constraints.txt -e '.[train,demo,dev]'
	@touch $@
