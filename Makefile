# Two commands matter: `make serve` and `make test`. `make help` lists the rest.
# Needs Python 3.11+ with venv; everything else goes into environments of its own beside this file.

PYTHON ?= python3
VENV ?= .venv
VENV_SERVE ?= .venv-serve
VENV_GPU ?= .venv-gpu
ARTIFACTS = $(patsubst %/model.json,%,$(wildcard models/*/*/model.json))

.DEFAULT_GOAL := help
.PHONY: help serve venv test test-browser stress lint format verify check-floors check-image check-gpu check-gpu-install check-compose check-compose-private check-monitoring clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 20

serve: export QUATSERVE_LOG_FORMAT ?= text
serve: $(VENV_SERVE)/.installed  ## serve models/ at http://localhost:8000, on the CPU
	@$(VENV_SERVE)/bin/python -m quatserve serve

venv: $(VENV)/.installed  ## make .venv, with everything in it

test: $(VENV)/.installed  ## run the test suite
	$(VENV)/bin/python -m pytest

test-browser: $(VENV)/.installed  ## run the tests that drive a real chromium
	$(VENV)/bin/python -m pytest -m browser

stress: $(VENV)/.installed  ## attack a real service for up to ten minutes; writes docs/reliability.md
	$(VENV)/bin/python -m tests.stress

lint: $(VENV)/.installed  ## style, types and import directions
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy -p quatserve -p tests -p benchmarks
	$(VENV)/bin/lint-imports

format: $(VENV)/.installed  ## put the code into its one format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

verify: $(VENV)/.installed  ## check digests, operators and probe of every artifact in models/
ifeq ($(ARTIFACTS),)
	@echo "models/ holds no artifact: nothing to verify."
else
	$(VENV)/bin/python -m quatserve verify $(ARTIFACTS)
endif

check-floors: $(VENV)/.installed  ## run the service's tests with the oldest dependencies admitted
	$(VENV)/bin/python -m tests.packaging.floors

check-image: $(VENV)/.installed  ## build and start the CPU image's contents, without Docker
	$(VENV)/bin/python -m tests.packaging.service_image cpu

check-gpu: $(VENV_GPU)/.installed  ## check this host's GPU with the models (downloads gigabytes); writes gpu-report.json
	$(VENV_GPU)/bin/python -m quatserve check-gpu

check-gpu-install: $(VENV)/.installed  ## install the real GPU extra (gigabytes), and assert why it refuses to run
	$(VENV)/bin/python -m tests.packaging.service_image gpu

check-compose: $(VENV)/.installed  ## build the images and run them with the container engine of this machine
	$(VENV)/bin/python -m tests.compose

check-compose-private: $(VENV)/.installed  ## the same with an engine of its own, thrown away after it (as root on Debian)
	$(VENV)/bin/python -m tests.compose.private_engine $(VENV)/bin/python -m tests.compose

check-monitoring:  ## Prometheus's own check of its configuration and alerts
	@command -v promtool >/dev/null || { echo "promtool is missing. On Debian: apt install prometheus"; exit 1; }
	promtool check config --syntax-only docker/monitoring/prometheus.yml
	promtool check rules docker/monitoring/alerts.yml
	promtool test rules docker/monitoring/alerts_test.yml

clean:  ## remove the environments and caches
	rm -rf $(VENV) $(VENV_SERVE) $(VENV_GPU) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# --- environments ---------------------------------------------------------------------------------------
# An environment is made once, and again when the dependencies change: its stamp is younger than both files.

$(VENV)/.installed: EXTRA = dev
$(VENV_SERVE)/.installed: EXTRA = cpu
$(VENV_GPU)/.installed: EXTRA = gpu
%/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "quatserve needs Python 3.11 or newer and this is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python comes without venv. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $*
	@echo "Installing quatserve[$(EXTRA)] into $* (minutes the first time; log in $*/install.log)"
	@$*/bin/python -m pip install --constraint constraints.txt --editable '.[$(EXTRA)]' >$*/install.log 2>&1 || { \
	    tail -n 3 $*/install.log; \
	    if grep -qiE 'from versions: none|connection|timed out' $*/install.log; \
	    then echo "The package index cannot be reached. Check the network, or point pip at a mirror (PIP_INDEX_URL), and run make again."; \
	    else echo "The installation failed: $*/install.log tells why."; fi; exit 1; }
	@touch $@
