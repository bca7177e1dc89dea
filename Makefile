# The two commands of the README. Everything they need goes into .venv.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test

# Train a host on 256 books, swap its fact MLP, run every editor on its full grid, write the report.
demo: .venv/installed
	$(BIN)/mlpswap benchmark --config edit_tiny output_dir=runs/demo --overwrite

test: .venv/installed
	$(BIN)/python -m pytest

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@
