# Every target installs what it needs into .venv; nothing on the machine but Python 3.11+ is assumed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check faults bench install clean

demo: .venv/demo
	$(BIN)/rt demo

test: .venv/dev
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal

check: .venv/dev
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy
	$(BIN)/pytest -n 2 -q -m "not faults and not process"

faults: .venv/dev
	$(BIN)/pytest -q -m "faults"

bench: .venv/dev
	$(BIN)/python -m benchmarks

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[demo]'
	@touch $@

.venv/dev: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,arrow,demo]'
	@touch $@

clean:
	rm -rf .venv build *.egg-info
