# Both main commands do all their own set-up in .venv: no root, no GPU needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: serve demo test test-traces test-older-blas lint types check bench soak fuzz clean

serve: $(STAMP)
	$(BIN)/luce serve $(ARGS)

demo: $(STAMP)
	$(BIN)/luce demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m tests.fetch
	$(BIN)/python -m tests.clients.install
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 1 $(ARGS)

# The same, and actors are led along every trace of the tests to its end.
test-traces: export LUCE_TEST_RUN = all
test-traces: test

# The exactness promise on the BLAS kernels of an older machine as well: bits there depend on other things.
# (The engine of devices does not use BLAS, and what takes how many bytes is no question of bits.)
test-older-blas: $(STAMP)
	OPENBLAS_CORETYPE=Haswell $(BIN)/python -m pytest -n 1 tests/compute tests/engines --ignore tests/engines/device \
	  --ignore tests/engines/test_device_vision.py --ignore tests/engines/test_request_memory.py $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

# Half an hour of traffic of every kind against a server; ends with an error if its memory grows.
soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak $(ARGS)

# A minute of requests that are nearly right against a whole server; ARGS="--seconds 600" for longer.
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz $(ARGS)

# One install serves every target; it is repeated only when the dependencies change.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "luce needs Python 3.11 or newer; found $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
