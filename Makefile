# The README's two commands are `make floor` and `make test`; each works alone on a fresh clone.
PYTHON ?= python3
# One more package index, for another build of torch: https://download.pytorch.org/whl/cpu has the one without CUDA.
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
# Two stamps in one environment: what runs need, and with it what tests, style checks and documentation need.
RUN_ONLY := $(VENV)/.run
DEVELOPMENT := $(VENV)/.development
EXTRAS := [test,lint,docs]

UV := $(shell command -v uv)
# uv takes the first index that has a package, unless told to compare releases of all, as pip does
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) $(if $(UV),--index-strategy unsafe-best-match))

# $(call install,FOLDER,EXTRAS): says what comes, then puts this project with EXTRAS into an environment in FOLDER
define install
	@$(PYTHON) install/announce.py $(1) '$(2)' '$(TORCH_INDEX)'
	$(if $(UV),$(UV) venv --quiet --allow-existing --python $(PYTHON) $(1),$(PYTHON) -m venv $(1))
	$(if $(UV),$(UV) pip install --python $(1)/bin/python,$(1)/bin/python -m pip install --disable-pip-version-check) \
		$(INDEX) --constraint constraints.txt --editable '.$(2)'
endef

.PHONY: floor test lint report articles calibrate peers gpu-check validate fuzz offline docs wheel cuda-build test-cuda-build

$(RUN_ONLY): pyproject.toml constraints.txt
	$(call install,$(VENV))
	touch $@

$(DEVELOPMENT): pyproject.toml constraints.txt
	$(call install,$(VENV),$(EXTRAS))
	touch $(RUN_ONLY) $@

floor: $(RUN_ONLY)
	@echo "Proves and measures the ladder: some ten minutes, one with ARGS=--quick. The report: runs/.../report.html"
	$(BIN)/python -m experiments.floor $(ARGS)

articles: $(RUN_ONLY)
	$(BIN)/python -m experiments.articles $(ARGS)

calibrate: $(RUN_ONLY)
	$(BIN)/python -m experiments.calibrate $(ARGS)

report: $(RUN_ONLY)
	$(BIN)/python -m reports.build $(RUN)

test: $(DEVELOPMENT)
	$(BIN)/python -m pytest --numprocesses 2 $(ARGS)

lint: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Holds the predictions of GPU steps against a table of published ones: make validate STEPS=steps.csv
validate: $(RUN_ONLY)
	$(BIN)/python -m experiments.validate $(STEPS) --out docs/validation.md $(ARGS)

# Hostile inputs: make fuzz ARGS='--inputs 10000 --seed 1 --kills 100'
fuzz: $(DEVELOPMENT)
	$(BIN)/python -m experiments.fuzz $(ARGS)

gpu-check: $(DEVELOPMENT)
	$(BIN)/python -m experiments.gpu_check $(ARGS)

# An archive for a machine with a GPU and no network
offline: $(DEVELOPMENT)
	$(BIN)/python install/offline.py $(ARGS)

docs: $(DEVELOPMENT)
	@echo "Builds the documentation with the numbers of a record: half a minute. The result: site/index.html"
	NO_MKDOCS_2_WARNING=1 RUN=$(RUN) $(BIN)/python -m mkdocs build --quiet --strict
	@echo "built: site/index.html; to search in it: python -m http.server -d site"

wheel: $(DEVELOPMENT)
	$(BIN)/python -m build --no-isolation --outdir dist

# Other engines bring their own runtimes: they get an environment of their own, outside the clone.
PEERS ?= $(HOME)/.cache/decode-floor/peers

# make peers PEERS_WITHOUT=llama.cpp: all but the one that is compiled
PEERS_WITHOUT ?=
# Not whatever this processor has: llama.cpp's kernels for AMX crash. Without NATIVE it takes AVX2, FMA and F16C.
AVX512 := $(if $(shell grep -w avx512vl /proc/cpuinfo 2>/dev/null),-DGGML_AVX512=ON)

$(PEERS)/.installed: pyproject.toml constraints.txt
	$(call install,$(PEERS),[peers])
	touch $@

$(PEERS)/.llama: $(PEERS)/.installed
	@echo "Compiles llama.cpp, a quarter of an hour on two cores; PEERS_WITHOUT=llama.cpp leaves it out."
	$(PEERS)/bin/python -m ensurepip --upgrade
	CMAKE_ARGS="-DGGML_NATIVE=OFF $(AVX512)" $(PEERS)/bin/python -m pip install --disable-pip-version-check --verbose \
		--constraint constraints.txt --editable '.[llama]'
	touch $@

peers: $(PEERS)/.installed $(if $(filter llama.cpp,$(PEERS_WITHOUT)),,$(PEERS)/.llama)
	@echo "Proves and measures engines of others beside our rungs: first their conversions, some minutes (docs/peers.md)"
	$(PEERS)/bin/python -m experiments.peers $(ARGS)

# The quick tests once more, where `make cuda-build PYTHON=python3.13` has installed torch's CUDA build (no GPU needed).
CUDA_BUILD ?= $(HOME)/.cache/decode-floor/cuda-build
QUICK := $(addprefix tests/test_,model.py kv.py tape.py floor.py cli.py elsewhere.py)

cuda-build:
	$(call install,$(CUDA_BUILD),[test])

test-cuda-build:
	@if [ -x $(CUDA_BUILD)/bin/python ]; then $(CUDA_BUILD)/bin/python -m pytest --numprocesses 2 $(QUICK) $(ARGS); \
	else echo "the quick tests on torch's CUDA build are skipped: there is none in $(CUDA_BUILD) (make cuda-build)"; fi
