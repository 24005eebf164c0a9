# `make demo` and `make test` are all that a newcomer needs: each makes .venv and installs first.
PYTHON ?= python3.11
TORCH  ?= yes
VENV   := $(if $(filter python3.11,$(notdir $(PYTHON))),.venv,.venv-$(notdir $(PYTHON)))
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

.PHONY: install lock sbom licences docs docs-pictures demo demo-docker test test-slow test-faults test-machines fuzz matrix check lint types contracts format proto bench build release clean help

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

install: $(STAMP) ## make .venv with every role and the development tools (PYTHON=python3.13 TORCH=no)

# Only files whose hash stands in constraints.txt. PyTorch's build for the processor alone, where pip
# finds one (PIP_FIND_LINKS=folder); else PyPI's, with CUDA; or none (TORCH=no), and tests that need it
# are skipped.
$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV): some minutes, without a word; 2.5 GB with PyTorch."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/requirements $(if $(filter no,$(TORCH)),--plain) dev > $(VENV)/requirements.txt
	$(PIP) --require-hashes -r $(VENV)/requirements.txt \
	  || { test $(TORCH) != no && $(BIN)/python .ci/requirements --cuda dev > $(VENV)/requirements.txt && $(PIP) --require-hashes -r $(VENV)/requirements.txt; }
	$(PIP) --no-build-isolation -e .
	touch $@

lock: $(STAMP)   ## write constraints.txt anew, with the hashes of every file
	.ci/lock

demo: $(STAMP)   ## run the demonstration on this machine
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/isonomy demo

demo-docker:     ## build the three images and run the demonstration in containers
	.ci/demo-docker

# One numeric thread per process: the tests run on all cores already.
test: $(STAMP)   ## all tests but the slow campaigns
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow'

test-lowest: $(STAMP) ## a short form of the tests with the lowest versions that pyproject.toml admits
	.ci/test-lowest

test-slow: $(STAMP) ## the long campaigns: a million people, thousands of kills
	$(BIN)/python -m pytest -m slow -n 1

test-faults: $(STAMP) ## kill each party at each step, exhaust the relay
	$(BIN)/python -m pytest -m 'slow or not slow' -n 1 tests/common/session/test_session_faults.py tests/common/ledger/test_ledger_kill.py tests/server/relay/test_relay_exhaustion.py

test-machines: $(STAMP) ## three machines in network namespaces, with a cut cable and a power cut (root)
	$(BIN)/python -m pytest -m 'slow or not slow' -n 0 tests/e2e/test_three_machines.py

fuzz: $(STAMP)   ## mutants for every parser, ten minutes (SECONDS_EACH=14)
	$(BIN)/python -W ignore tests/fuzz/run.py --seconds-each $(or $(SECONDS_EACH),14) --keep

matrix: $(STAMP) ## every combination at tiny size; writes docs/matrix.md
	OMP_NUM_THREADS=1 $(BIN)/python tests/matrix/run.py

check: lint types contracts ## lint, types and import contracts

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP)  ## generate the wire code again from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto $$(find proto -name '*.proto')

bench: $(STAMP)  ## speed and size of the blind group sum, as ratios in one run
	$(BIN)/isonomy bench sums

build: $(STAMP) sbom ## wheel, source archive and list of packages into dist/
	$(BIN)/python -m build --no-isolation

release: $(STAMP) ## build wheel and source archive, try each role's in an empty environment, write checksums
	.ci/release

sbom: $(STAMP)   ## list every package of this environment in dist/sbom.cdx.json (CycloneDX)
	mkdir -p dist
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json $(BIN)/python

licences: $(STAMP) ## write docs/licences.md
	$(BIN)/python .ci/licences

docs: $(STAMP)   ## build the site into dist/site; a broken link ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-pictures: $(STAMP) ## draw the pictures of the pages anew; reports and console with Chromium
	$(BIN)/python tests/kits/docs_pictures.py
	$(BIN)/python tests/kits/report_pictures.py
	$(BIN)/python tests/kits/console_pictures.py

clean:           ## remove what was built, not what was written
	rm -rf .venv .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
