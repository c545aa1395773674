# Every target works from a fresh clone. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.kdir-setup
# Tests wait for servers more than they compute: five at a time on two cores, each file's in one process.
JOBS ?= 5
SOURCES := resolver directory deploy bench tests

# Start-up is part of what is tested and measured: with bytecode, as everybody has it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup servers etcd helm proto proto-baseline docs check fix test soak soak-log hostile demo demo-down bench rooms clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the virtual environment in .venv

# Editable in setuptools' "compat" mode: a plain .pth file, since the import hook of the default
# mode costs `kdir ls` some of its start-up. It covers the checkout's root; proto/ needs its own.
$(STAMP): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "kdir needs Python 3.11 or newer: install it, or name one with make PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "This Python has no venv module: install it (on Debian: apt-get install python3-venv)." >&2; exit 1; }
	@echo "setting up $(VENV); the first time it takes some minutes" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --config-settings editable_mode=compat --editable '.[kafka,etcd,identity,index,dev]'
	@$(BIN)/python -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "kdir-proto.pth").write_text(str(pathlib.Path("proto").resolve()) + "\n")'
	@touch $(STAMP)

servers: setup ## fetch the local servers (Kafka, Delta's jars) into the cache
	@$(BIN)/python -m deploy.local

etcd: setup ## build etcd into the cache, for the tests of its store (needs Go)
	@$(BIN)/python -m deploy.local etcd

helm: setup ## build Helm into the cache, for the tests of the chart (needs Go, some minutes)
	@$(BIN)/python -m deploy.local helm

proto: setup ## regenerate what is made from proto/; refuses to break clients
	@$(BIN)/python -m deploy.tools.generate
	@cd proto && { ../$(BIN)/buf breaking . --against baseline.txtpb || \
	  { echo "This breaks clients; if there are none yet: make proto-baseline." >&2; exit 1; }; }
	@$(MAKE) --no-print-directory proto-baseline

proto-baseline: setup ## take the contract as it is now as the one never to break
	@cd proto && ../$(BIN)/buf build . --exclude-source-info --output baseline.txtpb

docs: setup ## list in docs/guarantees.md the tests that carry each promise
	@$(BIN)/python -m deploy.tools.guarantees

check: setup ## lint, format, types, contract and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/pytest -q tests/repository -m "not slow" --deselect tests/repository/test_lint.py::test_ruff_finds_nothing \
	  --deselect tests/repository/test_lint.py::test_the_format_is_ruffs

fix: proto docs ## repair what can be repaired: lint, format, generated modules and lists
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup servers ## run every test, real servers included
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory etcd; \
	  else echo "no Go here: the local etcd's tests are skipped" >&2; fi
	@$(BIN)/pytest --collect-only -qq tests >/dev/null || true # compiles each file once, not in each worker
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder tests

# SECONDS is not the shell's here: make knows no such variable unless somebody gives it.
soak: setup servers ## random federation under faults against a model; SECONDS=60, SEED=n
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory etcd; \
	  else echo "no Go here: stores are on sqlite only" >&2; fi
	@$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(SOAK)

soak-log: setup servers ## kill and pause servers, brokers and etcd of a change log, ask 2,000 random commands, and compare log and store (three quarters of an hour)
	$(BIN)/pytest -q --soak tests/integration/change_log/test_killed_at_random.py tests/integration/change_log/test_killed_steps.py tests/integration/change_log/test_random_commands.py -k "killed or random"

hostile: setup ## a million requests by hostile peers, and as many bad files and rows (an hour)
	$(BIN)/pytest -q --soak tests/fault/test_hostile.py tests/fault/test_hostile_inputs.py

demo: setup servers ## start a small federation on real Kafka brokers and show it
	@$(BIN)/python -m deploy.demo up

demo-down: setup ## end the demo's federation, and only it
	@$(BIN)/python -m deploy.demo down

bench: setup servers ## measure; NAME=x for one benchmark, TOPICS=20000 for a quick look
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory etcd; \
	  else echo "no Go here: what needs the local etcd is left out" >&2; fi
	@$(BIN)/python -m bench $(if $(TOPICS),--topics $(TOPICS)) $(NAME)

rooms: setup ## print which files of the server a Resolve and a CreateEntry pass
	@$(BIN)/python -m deploy.tools.rooms

clean: ## remove what was made in this checkout (not the cache of servers)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis bench/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
