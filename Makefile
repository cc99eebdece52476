# From a fresh clone: `make demo` studies a small model and writes a page about it, `make test` runs every check. The second time both start at once.
PYTHON ?= python3
SECTION ?=
export PYTHON
# Tests start hundreds of Pythons: what the first one compiled the others need not compile again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# Root on Debian can have everything, so there no test may be skipped.
REQUIRE_ALL := $(shell [ "$$(id -u)" = 0 ] && grep -qsx ID=debian /etc/os-release && echo 1 || echo 0)
# Most launches leave a core idle, so tests share the cores; those that compare times run alone. Quick tests leave none idle.
PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder
QUICK := --numprocesses logical --dist loadfile --no-loadscope-reorder
# Others may need the cores too: tests that failed run once more with nothing of ours beside them, are named, and count then.
ONCE_MORE = --cache-clear || { [ $$? = 1 ] && echo "make test: what failed runs once more, alone" && \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --verbose; }

.PHONY: help demo test test-scripts check goldens lint bench docs figures setup horovod clean
.NOTPARALLEL:

help:
	@echo "make demo          study a small model on 1 and 2 processes in 5 minutes: predict, measure, explain, tune; ends with a page"
	@echo "make test          lint, types and all tests, with real Horovod, Open MPI and Slurm"
	@echo "make check         its fast part: lint, types and the tests that launch nothing"
	@echo "make test-scripts  Lightning, transformers, ignite and other scripts under measure, explain and tune"
	@echo "make goldens       write the texts of commands that tests keep, and sessions in the docs, anew"
	@echo "make lint          ruff and mypy"
	@echo "make bench         the benchmarks; SECTION=name for one of them"
	@echo "make docs          the documentation as a site in docs/_build/html, every link checked"
	@echo "make figures       draw the figures of README and docs/concepts anew"
	@echo "make setup         .venv, Debian packages (as root) and Horovod"
	@echo "make clean         remove .venv, .venv-scripts, caches and the demo's results; built Horovod wheels stay in the user's cache"

demo: .venv/.python
	rm -rf results/demo
	$(BIN)/scalescope study cnn --np 1,2 --batch 8,16,32,64 --budget 5m -o results/demo

test: export SCALESCOPE_REQUIRE_ALL = $(REQUIRE_ALL)
test: setup lint
	$(BIN)/python -m pytest -m "not alone and not user_scripts" $(PARALLEL) $(ONCE_MORE)
	$(BIN)/python -m pytest -m alone $$(grep -rl --include='test_*.py' mark.alone tests) $(ONCE_MORE)

test-scripts: export SCALESCOPE_REQUIRE_ALL = $(REQUIRE_ALL)
test-scripts: setup .venv-scripts/.python
	.venv-scripts/bin/python -m pytest tests/user_scripts --numprocesses 2 --dist worksteal

check: lint
	$(BIN)/python -m pytest -m "not launches" $(QUICK)

goldens: .venv/.python
	SCALESCOPE_GOLDENS=write $(BIN)/python -m pytest -q tests/report/test_golden.py tests/cli/test_golden_commands.py tests/cli/test_sample_outputs.py

lint: .venv/.python
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks $(SECTION)

docs: .venv/.docs
	rm -rf docs/_build
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html --doctree-dir docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/links.py docs/_build/html

figures: .venv/.python
	$(BIN)/python docs/figures.py

setup: .venv/.python .venv/.horovod

horovod: .venv/.python
	$(BIN)/python scripts/build_horovod

clean:
	rm -rf .venv .venv-scripts .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist docs/_build results/demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.python: pyproject.toml constraints.txt scripts/setup
	scripts/setup python
	@touch $@

.venv/.docs: .venv/.python
	scripts/setup docs
	@touch $@

.venv-scripts/.python: .venv/.python
	scripts/setup scripts
	@touch $@

.venv/.horovod: .venv/.python scripts/build_horovod scripts/packages
	scripts/setup system
	scripts/setup horovod
	@touch $@
