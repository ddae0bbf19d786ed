# The project's commands. Run `make` to list them.
# PYTHON is the interpreter for a new virtual environment, VENV the environment's folder.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# Number of tests that run in parallel: two for each of two cores, because many tests wait for brokers and processes.
JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-gpu arm64-test explore soak boot-test fuzz check format docs bench wheelhouse clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Stamp files record what is installed in the environment, so that nothing is installed twice. [dev] includes [server].
$(VENV)/.has-server: pyproject.toml constraints.txt
	PYTHON="$(PYTHON)" scripts/setup.sh "$(VENV)" server,report,data
	@touch $@

$(VENV)/.has-dev: pyproject.toml constraints.txt
	PYTHON="$(PYTHON)" scripts/setup.sh "$(VENV)" dev
	@touch "$(VENV)/.has-server" $@

# [docs] is not part of [dev]; see pyproject.toml.
$(VENV)/.has-docs: $(VENV)/.has-server pyproject.toml constraints.txt
	PYTHON="$(PYTHON)" scripts/setup.sh "$(VENV)" docs
	@touch $@

setup: $(VENV)/.has-server ## Create .venv with everything that a run needs, including the broker
	@scripts/mosquitto.sh "$(VENV)"
	@echo "Ready: make demo, or $(BIN)/fedquilt --help"

demo: $(VENV)/.has-server ## Run a small federation on this machine, with the status page
	$(BIN)/fedquilt demo $(ARGS)

PYTEST = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
test: $(VENV)/.has-dev ## Run the tests that take a few seconds each (ARGS="-k broker" selects some of them)
	$(PYTEST) -m "not long" $(ARGS)

test-long: $(VENV)/.has-dev ## Run the other tests: whole runs that are killed, the page in a browser, learning
	$(PYTEST) -m long $(ARGS)

# Without a CUDA device, all these tests are skipped. On a Jetson, install NVIDIA's wheel of torch first.
test-gpu: $(VENV)/.has-dev ## Try training, evaluation and memory on a CUDA device, in all precisions
	$(BIN)/python -m pytest -m gpu $(ARGS) tests/gpu

# Needs root, QEMU's user emulation, and the wheelhouse of make wheelhouse PYTHON_ON_BOARD=3.11.
arm64-test: $(VENV)/.has-dev ## Compare an emulated arm64 board with this machine, and train on both (many minutes)
	FEDQUILT_TEST_ARM64=1 $(BIN)/python -m pytest -s $(ARGS) tests/arm64

explore: $(VENV)/.has-dev ## Visit every state of the machine in small worlds (many minutes)
	$(BIN)/python -m tests.exploration.explore --jobs $(JOBS)

# Without SEED, seeds are drawn and printed. SEED=7 replays one scenario alone, SEED="7 9" two of them.
MINUTES ?= 10
SEED ?=
SOAK_OUT ?= runs/soak
soak: $(VENV)/.has-dev ## Soak test with random faults for MINUTES=10; SEED=n replays one scenario
	$(BIN)/python -m tests.soak $(SEED) --minutes $(MINUTES) --out "$(SOAK_OUT)" $(ARGS)

# Needs Linux and root. Images and wheels are kept in dist/boot-test. ARGS="--long" also trains on the board.
boot-test: $(VENV)/.has-dev ## Start flashed cards on virtual boards (many minutes; ARGS="--shapes raspios")
	$(BIN)/python -m tests.boot $(ARGS)

# Needs Linux. With atheris (pip install atheris) the inputs follow the code's coverage, otherwise they are random changes.
fuzz: $(VENV)/.has-dev ## Fuzz every parser of messages, files and options (MINUTES=10, ARGS="--target yaml")
	$(BIN)/python -m tests.fuzz.fuzz --minutes $(MINUTES) --jobs $(JOBS) $(ARGS)

check: $(VENV)/.has-dev ## Check lint, formatting, types and playbooks; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd ansible && PATH="$(abspath $(BIN)):$$PATH" ansible-lint --offline --nocolor --profile production

format: $(VENV)/.has-dev ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.has-docs ## Write docs/reference/ from the code and build the documentation site in site/
	$(BIN)/python scripts/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Ready: $(BIN)/python -m http.server --directory site"

bench: $(VENV)/.has-dev ## Measure performance (ARGS: the options of fedquilt bench)
	$(BIN)/fedquilt bench $(ARGS)

# Flashing and Ansible install boards from a wheelhouse. PYTHON_ON_BOARD is the board's Python: 3.13 in Raspberry Pi OS 13.
ARCH ?= aarch64
PYTHON_ON_BOARD ?= 3.13
wheelhouse: $(VENV)/.has-server ## Collect the wheels that a board installs without a network (ARCH=aarch64)
	$(BIN)/python scripts/wheelhouse.py --arch $(ARCH) --python $(PYTHON_ON_BOARD) $(ARGS)

clean: ## Remove the environment and the tools' caches; keep the runs
	rm -rf "$(VENV)" .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
