# Every target below sets up .venv on first use; there is nothing to install by hand but Python and make.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all golden check bench docs lock clean FORCE

BIN   := .venv/bin
STAMP := .venv/.penstock-stamp
ARGS  ?=
# Tests and benches start hundreds of Python processes: each would compile all of Penstock again.
unexport PYTHONDONTWRITEBYTECODE
TESTS := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with the pinned packages (PYTHON=... chooses the interpreter)
	@echo "penstock: .venv is up to date"

demo: $(STAMP) ## Run the demo
	@$(BIN)/penstock demo $(ARGS)

test: $(STAMP) ## Run the tests (ARGS="-k shedding" is passed to pytest)
ifeq ($(strip $(ARGS)),)
	@$(TESTS) -m "not spark and not long"
	@$(TESTS) tests/spark -m "spark and not long" --durations=15
else
	@$(BIN)/python -m pytest $(ARGS)
endif

test-all: export PENSTOCK_TESTS := thorough
test-all: $(STAMP) ## Run every test, also those that take minutes
	@$(TESTS) -m "not spark"
	@$(TESTS) tests/spark -m spark --durations=15

golden: $(STAMP) ## Compare what the control plane decides with recorded traces (ARGS=--record writes them anew)
	@$(BIN)/python -m tests.golden $(ARGS)

check: $(STAMP) ## Lint, check the formatting and the types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(STAMP) ## Run a benchmark (ID=name, all of them by default; ARGS=... is passed on)
	@$(BIN)/penstock bench run $(or $(ID),all) $(ARGS)

docs: $(STAMP) ## Check the docs: README snippets, links, examples
	@$(BIN)/python -m pytest tests/docs $(ARGS)

lock: ## Regenerate requirements.lock (ARGS=--upgrade moves every pin)
	@sh scripts/lock.sh $(ARGS)

clean: ## Remove .venv and the caches, nothing else
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .numba_cache
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The script compares contents and returns at once when nothing changed, so it is always asked: a time
# stamp would miss a moved project and see a change in every checkout.
$(STAMP): FORCE
	@sh scripts/setup.sh

FORCE:
