# `make demo` and `make test` need git, make, a C compiler and Python 3.11 or newer; the rest is set up here.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-fast check docs bench bench-acceptance bench-feedback bench-planners wheel clean

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; choose one with: make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "this Python can't make virtual environments (Debian: apt-get install python3-venv)"; exit 2; }
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(READY)  ## tune a real llama.cpp server's launch parameters: about 6 minutes on 2 cores after the downloads
	$(BIN)/infra-agent run targets/llamacpp --planner search --experiments 8 --minutes 5.5

test: $(READY)  ## every test
	$(BIN)/python -m pytest

test-fast: $(READY)  ## without real engines and without what takes more than ten seconds
	$(BIN)/python -m pytest -m "not slow and not engine"

check: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)  ## the tables of rules and formats in docs/
	for page in docs/signals.md docs/feedback.md; do \
		$(BIN)/python -m feedback.rules.catalogue < $$page > $$page.new && mv $$page.new $$page || exit 1; \
	done

bench: $(READY)  ## the orchestrator's own cost per experiment
	$(BIN)/python benchmarks/overhead.py

bench-acceptance: $(READY)  ## false accepts and power of the acceptance rule on this machine: about an hour
	$(BIN)/python benchmarks/acceptance.py --json bench-acceptance.json

bench-feedback: $(READY)  ## a million-event trace read and analysed, beside HolisticTraceAnalysis and Perfetto: some minutes
	$(BIN)/python benchmarks/feedback_traces.py $(BENCH_FEEDBACK)

bench-planners: $(READY)  ## planners without a model on simulated campaigns: some minutes, the same table every time
	$(BIN)/python benchmarks/planner_search.py

wheel: $(READY)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) .venv-peers dist build bench-acceptance.json
