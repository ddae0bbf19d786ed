# Everything a person or a pipeline does here. `make` alone lists it.
# PYTHON chooses the interpreter for a new environment, VENV where that environment is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# How many tests run at a time. Many of them wait for brokers and processes rather than compute.
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench wheelhouse clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A stamp tells what the environment holds, so that nothing is installed twice. [dev] includes [server].
$(VENV)/.has-server: pyproject.toml constraints.txt
	PYTHON="$(PYTHON)" scripts/setup.sh "$(VENV)" server
	@touch $@

$(VENV)/.has-dev: pyproject.toml constraints.txt
	PYTHON="$(PYTHON)" scripts/setup.sh "$(VENV)" dev
	@touch "$(VENV)/.has-server" $@

setup: $(VENV)/.has-server ## Make .venv with all that a run needs, the broker included
	@scripts/mosquitto.sh "$(VENV)"
	@echo "Ready: make demo, or $(BIN)/fedquilt --help"

demo: $(VENV)/.has-server ## Watch a small federation learn on this machine
	$(BIN)/fedquilt demo $(ARGS)

test: $(VENV)/.has-dev ## Run the tests (ARGS="-k broker" for some of them)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal $(ARGS)

check: $(VENV)/.has-dev ## Lint, formatting, types, playbooks; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd ansible && PATH="$(abspath $(BIN)):$$PATH" ansible-lint --offline --nocolor --profile production

format: $(VENV)/.has-dev ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.has-dev ## Measure (ARGS are those of fedquilt bench)
	$(BIN)/fedquilt bench $(ARGS)

# What a board of ARCH needs, for flashing and for Ansible: PYTHON_ON_BOARD is its version.
ARCH ?= aarch64
PYTHON_ON_BOARD ?= 3.11
wheelhouse: $(VENV)/.has-server ## Collect what a board needs to install without a network (ARCH=aarch64)
	$(BIN)/python scripts/wheelhouse.py --arch $(ARCH) --python $(PYTHON_ON_BOARD) $(ARGS)

clean: ## Remove the environment and what tools left behind; runs are kept
	rm -rf "$(VENV)" .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
