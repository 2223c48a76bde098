# Every target installs what it needs, once. It needs Python 3.11 or newer.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DELETE_ON_ERROR:
.PHONY: help demo test fuzz docs browser bench endure lint format wheel clean

help:
	@echo "make demo     train a small network on MNIST, prove its robustness, write a page about it"
	@echo "make test     run the tests, with the same random numbers every time"
	@echo "make fuzz     run property tests with new random numbers for FUZZ_MINUTES=30 minutes"
	@echo "make docs     build the documentation as a site: site/index.html"
	@echo "make bench    measure the time of training steps and of CROWN, as ratios (half an hour, on an idle machine)"
	@echo "make endure   kill trainings and certifications a hundred times and check that nothing is lost (15 minutes)"
	@echo "make lint     check style, types and the import contract"
	@echo "make format   format the code"
	@echo "make wheel    build dist/advibp-*.whl"
	@echo "make clean    remove what was built (not .venv, not runs)"

demo: $(VENV)/.installed
	$(BIN)/advibp train mnist dm-small --recipe demo --resume --out runs/demo
	$(BIN)/advibp certify runs/demo --eps 0.1
	$(BIN)/advibp certify runs/demo --radius --limit 500 --steps 20
	$(BIN)/advibp report runs/demo

# Browser tests are skipped if there is no browser. In CI the browser is installed first.
test: $(VENV)/.installed-dev $(if $(CI),browser)
	$(BIN)/pytest -n 2

# Prints the seed of each round, and for a failure the command that repeats it.
FUZZ_MINUTES ?= 30
fuzz: $(VENV)/.installed-dev
	$(BIN)/python checks/fuzz.py --minutes $(FUZZ_MINUTES)

browser:
	@command -v chromium > /dev/null || { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install chromium chromium-driver > /dev/null; }

# The variable hides an advertisement that the theme prints.
docs: $(VENV)/.installed-dev
	$(BIN)/python docs/hooks/tables.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the site: site/index.html"

endure: $(VENV)/.installed-dev
	$(BIN)/python checks/endurance/kill_nine.py --kills 100 --minutes 15

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/crown.py --growth --json benchmarks/latest-crown.json

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# build/ holds the last build's files, and setuptools would pack those that have since been removed.
wheel: $(VENV)/.installed-dev
	rm -rf build
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# pip is installed last, so the venv is complete if pip exists.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("advibp needs Python 3.11 or newer; try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) install -c constraints.txt -e ".[all,dev]"
	@touch $@ $(VENV)/.installed
