PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

SOAK ?= 100

.PHONY: install demo test soak check format bench clean

install: $(VENV)/installed

# Made again only when what it depends on has changed.
$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[all]"
	touch $@

demo: install
	$(BIN)/sb3-caps demo $(ARGS)

test: install
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(ARGS)

# Damaged files, kills and memory, a hundred times longer than in `test`
soak: install
	SB3_CAPS_SOAK=$(SOAK) $(BIN)/python -m pytest tests/test_damaged_files.py tests/test_kills.py tests/test_memory.py -rP $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
