# The README's two commands are `make floor` and `make test`; each works alone on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: floor test lint report articles peers gpu-check validate docs wheel

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint,docs]'
	touch $@

floor: $(INSTALLED)
	$(BIN)/python -m experiments.floor $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2 $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

articles: $(INSTALLED)
	$(BIN)/python -m experiments.articles $(ARGS)

# Holds the predictions of GPU steps against a table of published ones: make validate STEPS=steps.csv
validate: $(INSTALLED)
	$(BIN)/python -m experiments.validate $(STEPS) --out docs/validation.md $(ARGS)

gpu-check: $(INSTALLED)
	$(BIN)/python -m experiments.gpu_check $(ARGS)

# Other engines bring their own runtimes: they get an environment of their own, outside the clone.
PEERS ?= $(HOME)/.cache/decode-floor/peers

$(PEERS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[peers]'
	touch $@

peers: $(PEERS)/.installed
	$(PEERS)/bin/python -m experiments.peers $(ARGS)

report: $(INSTALLED)
	$(BIN)/python -m reports.build $(RUN)

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 RUN=$(RUN) $(BIN)/python -m mkdocs build --quiet --strict
	@echo "site/index.html; with search: python -m http.server -d site"

wheel: $(INSTALLED)
	$(BIN)/python -m build --no-isolation --outdir dist
