# Every target installs what it needs into .venv; nothing on the machine but Python 3.11+ is assumed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check faults bench raftos clean

demo: .venv/demo
	$(BIN)/rt demo

test: .venv/dev
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal -m "not faults"

check: .venv/dev
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy
	$(BIN)/pytest -n 2 -q -m "not faults and not process"

faults: .venv/dev
	$(BIN)/pytest -q -m "faults"

bench: .venv/dev
	$(BIN)/python -m benchmarks

# The second consensus engine, docs/adr/0005-raftos.md. No target needs it; its tests are skipped
# without it. The package pins a cryptography of 2016, hence --no-deps.
raftos: .venv/dev
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps raftos==0.2.6
	$(BIN)/pip install --quiet --disable-pip-version-check msgpack
	$(BIN)/pytest -n 2 -q tests/unit/test_consensus_engines.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[demo,spark]'
	@touch $@

.venv/dev: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,arrow,demo,spark]'
	@touch $@

clean:
	rm -rf .venv build *.egg-info
