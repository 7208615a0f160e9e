# Each target makes its own virtual environment in .venv when there is none.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clean

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling editables
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/sketchogd demo

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

bench: .venv/ready
	$(BIN)/python benchmarks/peak_memory.py
	$(BIN)/sketchogd bench

clean:
	rm -rf .venv dist build
