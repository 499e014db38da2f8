# make demo   train the four stages on the toy world, evaluate, draw (about 15 minutes on two CPU cores)
# make test   run the test suite
# make lint   ruff
# Each makes the virtual environment .venv on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/python tools/demo.py

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadscope

lint: $(VENV)/.dev
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache

# Stamps: an environment is brought up to date only when pyproject.toml has changed since.
$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.made
	$(PIP) install --editable '.[train,eval,demo]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.made
	$(PIP) install --editable '.[dev]'
	touch $@ $(VENV)/.demo
