# make quickstart: install and train on a generated graph.
# make test: install and run at least one test of each kind of behavior, 8 minutes on two cores.
# make test-full: the remaining tests, except those of Ray clusters. On three processes, since tests
# of Ray and of lost ranks wait most of the time.
# make test-avx2: the fast tests of inference, golden losses and workers again, without AVX-512,
# with which products of matrices round differently.
# make test-cluster: nodes, drivers, jobs, notebooks and sweeps on Ray clusters that start and stop,
# half an hour, most of it waiting.
# make fuzz: thousands of damaged configs, tables and paths of classes, a minute on two idle cores.
# make docs: build the site with its API reference into build/site; a broken link is an error.
# make wheel: build sdist and wheel into dist/, and run the quickstart from the wheel alone, in an
# environment and a folder of their own.
# make bench: run the benchmarks of speed and memory at their smoke scale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCHMARKS := sampling neighborhoods training encoders learned_rows link_steps exact_inference partitioned presampled sparse_features ingest memory scaling startup

# Python compiles a module when it is first imported. pip would compile all of torch and Ray. Some
# images set this variable, with which hundreds of processes would each compile their imports again.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --no-compile -c constraints.txt
PYTEST := $(BIN)/python -m pytest

.PHONY: quickstart test test-full test-avx2 test-cluster fuzz lint docs wheel bench clean

quickstart: $(VENV)/.installed
	$(BIN)/python examples/quickstart.py

test: $(VENV)/.installed-dev
	$(PYTEST) --numprocesses 2 -m "not slow and not cluster" $(ARGS)

test-full: $(VENV)/.installed-dev
	$(PYTEST) --numprocesses 3 -m "slow and not cluster" $(ARGS)

test-avx2: $(VENV)/.installed-dev
	MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 \
	$(PYTEST) --numprocesses 2 -m "not slow and not cluster" tests/numerics/infer \
	tests/numerics/test_golden_losses.py tests/numerics/test_worker_equivalence.py $(ARGS)

test-cluster: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m cluster tests/integration

fuzz: $(VENV)/.installed-dev
	RAYGNN_FUZZ=full $(BIN)/python -m pytest --numprocesses 2 tests/fuzz

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(VENV)/.installed-dev
	rm -rf dist build/lib build/wheel
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --no-compile -c constraints.txt dist/raygnn-*.whl
	cp examples/quickstart.py examples/quickstart.yaml build/wheel
	cd build/wheel && bin/raygnn version && bin/python quickstart.py

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[dev]"
	touch $(VENV)/.installed $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) -e ".[docs]"
	touch $@

bench: $(VENV)/.installed
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

clean:
	rm -rf $(VENV) build
