PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

SOAK ?= 1

PLE := github.com/ntasfi/PyGame-Learning-Environment

.PHONY: install demo test soak ple check check-docs docs dist format bench clean

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

# Sources that return anything, damaged files and those of strangers, kills, memory, runs that stop and go on, and what
# an episode costs in the end, much longer than in `test`: about an hour of one core, `make soak SOAK=0.1` a tenth of it
soak: install
	SB3_CAPS_SOAK=$(SOAK) $(BIN)/python -m pytest tests/test_source_actions.py tests/test_damaged_files.py tests/test_kills.py \
		tests/test_memory.py tests/test_untrusted_files.py tests/test_sequences.py tests/test_interrupts.py \
		tests/test_growth.py tests/test_library.py -rP $(ARGS)

# The Pygame Learning Environment is on no package index: it comes from its repository, editable, for the pictures of
# its games are in no package
ple: install
	@$(BIN)/python -c "import ple" > $(VENV)/ple.log 2>&1 \
		|| GIT_TERMINAL_PROMPT=0 $(BIN)/pip install --no-build-isolation --constraint constraints.txt --src $(VENV)/src \
			--editable "git+https://$(PLE)#egg=ple" > $(VENV)/ple.log 2>&1 \
		|| { echo "make ple: PLE cannot be fetched from $(PLE) ($(VENV)/ple.log says why)." \
			"Where it can be reached, this installs it and runs its tests." >&2; exit 1; }
	$(BIN)/python -m pytest tests/test_ple.py $(ARGS)

check: install docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, into docs/_build/html
docs: install
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs docs/_build/html

# Runs the code blocks of README and the pages: a few minutes
check-docs: install
	$(BIN)/python -W ignore docs/check.py $(ARGS)

# What would be released, tried in a clean environment outside the clone
dist: install
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	PYTHON=$(PYTHON) .ci/try_wheel dist/*.whl

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
