# Every target sets up .venv by itself: a checkout and Python >= 3.11 are all that is needed. The demo installs only what a user needs.
PYTHON ?= python3
BIN := .venv/bin
BASE := .venv/.base
READY := .venv/.ready
# Bytecode is written when a module is imported, not when it is installed: half of the time and a quarter of the space of an installation.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

.PHONY: demo test test-all faults fuzz soak docs check format weight mutants bench bench-peers clean

demo: $(BASE)
	$(BIN)/laser sweep --recipe demo --out runs/demo --fresh

test: check
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: check
	$(BIN)/python -m pytest -n auto --dist worksteal

# Every fault of docs/reliability.md, slow ones too, with figures; writes that page's table and docs/reliability.csv.
faults: $(READY)
	rm -rf .faults && mkdir .faults
	-LASER_FAULT_FIGURES=.faults $(BIN)/python -m pytest -q -m fault tests  # one after the other: figures are times, too
	$(BIN)/python -m tests.faults.report .faults

# Half an hour of random kills, pauses and lies at a sweep, then a look at all that has to hold: make soak SOAK="--minutes 5 --disk-full".
soak: $(READY)
	$(BIN)/python -m tests.faults.soak $(SOAK)

# Damaged and forged files for every reader, 100,000 in all: ten minutes. Fails at an error that is not ours, or if memory grows.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --inputs 100000

# The documentation site in build/site; a broken link, a missing page or a bad reference fails.
docs: $(READY)
	$(PIP) --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# How large the house is, beside what it may be.
weight: $(READY)
	$(BIN)/python -m tests.weight

# Two cores need about half an hour. Fails below 95 % killed, or if a survivor is not explained in tests/mutation/survivors.toml.
mutants: $(READY)
	$(PIP) --editable ".[mutants]"
	rm -rf mutants
	$(BIN)/mutmut run
	$(BIN)/python -m tests.mutation.report

bench: $(READY)
	$(PIP) --editable ".[bench]"
	$(BIN)/python benchmarks/loss.py

# The package on one core beside the single-file example and stable-baselines3, which lies apart from the environment. Five minutes.
bench-peers: $(READY)
	$(PIP) --no-deps --upgrade --target .venv/.peers stable-baselines3 cloudpickle pandas
	PYTHONPATH=.venv/.peers $(BIN)/python -m benchmarks.cpu peers --csv benchmarks/results/$$(date +%F)-cpu-peers.csv

clean:
	rm -rf .venv mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# torch goes first and alone: anything else that asks for torch must find it there instead of choosing another build.
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "laser-rl needs Python 3.11 or newer, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable .
	touch $(BASE)

$(READY): $(BASE)
	$(PIP) --editable ".[dev]"
	touch $(READY)
