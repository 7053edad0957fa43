# Everything here needs Python 3.10 or newer and a package index, nothing else.
# PYTHON=… chooses the interpreter.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

VENV := .venv
RUN := $(VENV)/bin/python
GROUPS := --group test --group lint --group docs

# Run each interpreter: version managers leave shims on the PATH without one behind.
find_python = $(shell for p in $(1); do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 \
	&& { echo $$p; break; }; done)
PYTHON ?= $(call find_python,python3 python3.14 python3.13 python3.12 python3.11 python3.10 python)
# pyenv has those that are not chosen below its folder of versions.
version = python$(1) $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/$(1).*/bin/python$(1))
# Colab's and Kaggle's.
COLAB_PYTHON ?= $(call find_python,$(call version,3.12) python3.13 python3.11 $(PYTHON))
OLDEST_PYTHON ?= $(call find_python,$(call version,3.10) $(PYTHON))
# The virtual GPU is a few C files; a machine with no compiler takes one from a wheel.
COMPILER := $(shell command -v cc || command -v gcc || command -v clang || echo --group compiler)
ifneq ($(COMPILER),--group compiler)
COMPILER :=
endif

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/ready ## Execute the notebooks (on the GPU, or on a virtual one); results in build/demo/
	@$(RUN) -m tests.tools.demo

.PHONY: notebooks
notebooks: $(VENV)/ready ## Write what the notebooks and the pages show into them, from a virtual GPU
	@$(RUN) -m tests.tools.demo --write
	@$(RUN) -m tests.tools.docs --outputs

.PHONY: test
test: $(VENV)/ready ## Run the tests, on a virtual GPU
	$(RUN) -m tests $(ARGS)

.PHONY: test-notebooks
test-notebooks: $(VENV)/ready ## Run the notebooks of tests/notebooks, restarted before every cell
	$(RUN) -m pytest tests/notebooks --cuts=all -n auto $(ARGS)

.PHONY: test-frontends
test-frontends: $(VENV)/ready-frontends ## Run the tests of JupyterLab and the like (needs Chromium)
	$(RUN) -m pytest tests/frontends $(ARGS)

.PHONY: test-oldest
test-oldest: .venv-oldest/ready ## Run the tests with the lowest versions that pyproject.toml allows
	PYDEVD_DISABLE_FILE_VALIDATION=1 .venv-oldest/bin/python -m tests $(ARGS)

# What uses none of the versions that are pinned there, but torch, pynvml and rich; and the documents,
# whose outputs are those of the newest versions: their magics have tests of their own.
SAME_IN_COLAB := virtual_gpu render tools/test_demo.py tools/test_first_page.py tools/test_pages.py

.PHONY: test-colab
# ipykernel 6 imports debugpy, which warns of Python's own frozen modules; jupyter-client 7 leaves the
# event loop of a thread open.
test-colab: .venv-colab/ready ## Run the tests in the versions of Colab and Kaggle
	PYDEVD_DISABLE_FILE_VALIDATION=1 .venv-colab/bin/python -m tests -W ignore:unclosed:ResourceWarning $(SAME_IN_COLAB:%=--ignore=tests/%) $(ARGS)

.PHONY: test-t4
test-t4: $(VENV)/ready ## Run tests of timing, memory and selection where calls take what they do on a cloud's T4
	VGPU_PROFILE=t4 $(RUN) -m pytest tests/timing tests/memory tests/selection -n auto $(ARGS)

.PHONY: test-vendor
test-vendor: $(VENV)/ready ## Run the tests on NVIDIA's own libraries, with no GPU (Debian's packages)
	@$(RUN) -m tests.vendor $(ARGS)

.PHONY: test-wheel
test-wheel: $(VENV)/ready-wheel ## Build the wheel, and use it in an environment of its own
	@$(RUN) -m tests.tools.wheel

.PHONY: bench
bench: $(VENV)/ready-bench ## Measure what is promised of speed and exactness, where calls are free and as on an H100
	@VGPU_PROFILE=free $(RUN) -m tests.benchmarks $(ARGS)
	@VGPU_PROFILE=h100 $(RUN) -m tests.benchmarks $(ARGS)

.PHONY: hardware
hardware: $(VENV)/ready ## Ask this machine's GPU all that the package relies on, and record the answers
	$(RUN) -m pytest tests/hardware/test_questions.py tests/hardware --hardware $(ARGS)

.PHONY: lint
lint: $(VENV)/ready ## Check style and types
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

.PHONY: docs
docs: $(VENV)/ready ## Write the reference in docs/ from the magics' help
	$(RUN) -m tests.tools.docs

.PHONY: site
site: $(VENV)/ready-site demo ## Build the site of documentation, with no network, in build/site/
	@$(RUN) -m tests.tools.docs.site

.PHONY: pictures
pictures: demo ## Take README's pictures again, from the executed notebooks (needs Chromium)
	@$(RUN) -m tests.tools.docs.pictures

.PHONY: format
format: $(VENV)/ready ## Format the code
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

.PHONY: clean
clean: ## Remove everything built, with the environments
	rm -rf .venv .venv-colab .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find gpumagic tests -name __pycache__ -type d -prune -exec rm -rf {} +

define new_environment
	@test -n "$(2)" || { echo "No Python 3.10 or newer with 'venv' was found; on Debian: apt install python3-venv. Or name one: make PYTHON=…" >&2; exit 1; }
	@test -x $(1)/bin/python || { echo "Setting up $(1) with $(2); torch is large, this takes a few minutes"; $(2) -m venv $(1); }
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
endef

# Older than pyproject.toml: install what it has added; newer: nothing to do.
$(VENV)/ready: pyproject.toml
	$(call new_environment,$(VENV),$(PYTHON))
	@$(RUN) -m pip install --quiet --disable-pip-version-check -e . $(GROUPS) $(COMPILER)
	@touch $@

$(VENV)/ready-frontends: $(VENV)/ready
	@$(RUN) -m pip install --quiet --disable-pip-version-check --group frontends --group libraries
	@touch $@

$(VENV)/ready-site: $(VENV)/ready
	@$(RUN) -m pip install --quiet --disable-pip-version-check --group site
	@touch $@

$(VENV)/ready-bench: $(VENV)/ready
	@$(RUN) -m pip install --quiet --disable-pip-version-check --group bench
	@touch $@

$(VENV)/ready-wheel: $(VENV)/ready
	@$(RUN) -m pip install --quiet --disable-pip-version-check --group wheel
	@touch $@

.venv-oldest/ready: pyproject.toml tests/support/oldest.py
	$(call new_environment,.venv-oldest,$(OLDEST_PYTHON))
	@mkdir -p build
	@.venv-oldest/bin/python tests/support/oldest.py > build/oldest.txt
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -e . -r build/oldest.txt --group test --group docs $(COMPILER)
	@touch $@

# In one command: gpumagic's own bounds have to admit what is pinned, or nothing is installed.
.venv-colab/ready: pyproject.toml tests/colab.txt
	$(call new_environment,.venv-colab,$(COLAB_PYTHON))
	@.venv-colab/bin/python -m pip install --quiet --disable-pip-version-check -e . -r tests/colab.txt --group test --group docs $(COMPILER)
	@touch $@
