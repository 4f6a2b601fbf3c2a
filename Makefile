# make train   set up, then train for a few minutes and write a report    (ARGS="--seed 1" passes options on)
# make test    set up, then check the library and run every notebook's tests at scale smoke    (ARGS=board: those with "board" in their path)
# make gpu     on a machine with a card: rules, numbers, launches, speed and a run there, in runs/gpu, about eight minutes
# make gpu-carry   set up, then put what such a machine may lack into .carry: the engine, and wheels
# make size    set up, then print how large the library is, each figure with its budget
# make test-notes         the five notes and `start`, where the package is hidden: installed by their first cell from a git address
# make test-nbdev3        does nbdev 3 export the same library?
# make test-browser       a real browser plays whole games in JupyterLab and on the local page (pictures in runs/browser)
# make test-environments  the recipes for verifiers, OpenEnv, lm_eval and berserk, in .venv-environments
# make setup   .venv, CPU torch, the package, Stockfish; quick when it is all there   (CUDA=1 takes a GPU build of torch)
# make export  write chess_grpo/, README.md and the notebooks' first cells

PYTHON ?= python3
BIN := .venv/bin
ENVIRONMENTS := .venv-environments/bin
TORCH := $(shell grep '^torch==' constraints.txt)
CPU_TORCH := --index-url https://download.pytorch.org/whl/cpu
VENV = $(shell $(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])' 2>/dev/null)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: train test gpu gpu-carry size test-notes test-nbdev3 test-browser test-environments setup stockfish export clean

train: setup
	$(BIN)/chess-grpo train --run_name grpo $(ARGS)

test: setup
	$(BIN)/python .ci/check.py $(ARGS)

gpu:
	$(PYTHON) .ci/gpu.py $(ARGS)

gpu-carry: setup
	@mkdir -p .carry && cp "$$(command -v stockfish || echo /usr/games/stockfish)" .carry/stockfish
	$(PIP) wheel --no-deps -w .carry 'chess' wandb anywidget ipywidgets psygnal traitlets tqdm

size test-notes test-nbdev3 export: setup
	$(BIN)/python .ci/check.py --$(@:test-%=%)

test-browser: setup
	@$(PIP) install -c constraints.txt jupyterlab playwright
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || [ -n "$$CHROMIUM" ] || $(BIN)/python -m playwright install --with-deps chromium
	$(BIN)/python .ci/browser.py runs/browser

test-environments: stockfish
	@[ -x $(ENVIRONMENTS)/python ] || $(PYTHON) -m venv .venv-environments
	$(call get_torch,$(ENVIRONMENTS)/python)
	@$(ENVIRONMENTS)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[dev]' verifiers uv 'openenv-core[core]' lm_eval berserk
	@for page in recipes/verifiers recipes/openenv recipes/lm_eval integrations/uci; do \
	  echo $$page; CHESS_GRPO_SCALE=smoke $(ENVIRONMENTS)/nbdev_test --path nbs/$$page.ipynb --flags "verifiers openenv lm_eval lichess" --n_workers 0 || exit 1; done

setup: stockfish .venv/installed

.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python 3.11 or later (Debian, Ubuntu: apt-get install python3), or name one with: make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "chess_grpo needs Python 3.11 or later; name one with: make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || { rm -rf .venv; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && apt-get install -y -qq $(VENV) >/dev/null && $(PYTHON) -m venv .venv; \
	  else echo "Python's venv is missing: run 'sudo apt-get install $(VENV)' and try again."; exit 1; fi; }

# Without a torch, "pip install torch" on Linux takes several GB of CUDA packages; a dry run tells whether this machine's index would.
define get_torch
@$(1) -c 'import torch' 2>/dev/null || { pip="$(1) -m pip --disable-pip-version-check --quiet"; \
  if [ -z "$(CUDA)" ] && $$pip install --dry-run --report - '$(TORCH)' 2>/dev/null | grep -q '"nvidia-\|"name": "triton"'; \
  then $$pip install '$(TORCH)' $(CPU_TORCH); else $$pip install '$(TORCH)'; fi; }
endef

.venv/installed: .venv/bin/python settings.ini setup.py constraints.txt | stockfish
	@echo "setting up .venv (a few minutes the first time)"
	$(call get_torch,$(BIN)/python)
	@$(PIP) install -c constraints.txt -e '.[dev,text,ray]'
	@touch $@

stockfish:
	@[ -n "$$CHESS_GRPO_STOCKFISH" ] || command -v stockfish >/dev/null || [ -x /usr/games/stockfish ] || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo "installing Stockfish"; apt-get update -qq && apt-get install -y -qq stockfish >/dev/null; \
	  else echo "Stockfish is missing: run 'sudo apt-get install stockfish' (macOS: 'brew install stockfish') and try again, or set CHESS_GRPO_STOCKFISH to its path."; exit 1; fi; }

clean:
	rm -rf .venv .venv-environments build dist *.egg-info
