# `make serve` and `make test` from a fresh clone: both create .venv and install into it first.
# PYTHON chooses the interpreter (3.11 to 3.13), ARGS goes to serve.py or pytest.

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

.PHONY: serve test clean

serve: $(VENV)/.installed
	$(BIN)/python serve.py $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/pytest -n auto $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info

# Stamp files: an install is repeated only when pyproject.toml has changed.
$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@ $(VENV)/.installed

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "No interpreter '$(PYTHON)'. Install Python 3.11, 3.12 or 3.13 and name it: make PYTHON=python3.12 ..." >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	    echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); Halogen needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.12 ..." >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot create virtual environments; install its venv package (Debian, Ubuntu: apt install python3-venv)." >&2; \
	    exit 1; }
	$(PYTHON) -m venv $(VENV)
