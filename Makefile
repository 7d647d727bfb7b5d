# Two commands: `make demo` talks, `make test` checks. Both set up what they need first.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && exit; done; echo python3)
BIN := .venv/bin
PROMPT ?= Write a short story about a lighthouse keeper who finds a letter.

.PHONY: help demo test lint fix measure clean

help:
	@echo 'make demo     install specllama with its built-in pair into .venv, and let it answer'
	@echo 'make test     install what the tests need into .venv, and run them all'
	@echo 'make lint     the checks that take seconds: ruff, mypy'
	@echo 'make fix      let ruff mend what it can'
	@echo 'make measure  speed, memory and exactness on this machine (leave it alone meanwhile)'
	@echo 'make clean    remove .venv (the compiled llama.cpp stays in ~/.cache/specllama)'

demo:
	@echo '== specllama and its built-in pair -> .venv'
	@$(PYTHON) scripts/setup.py pair
	@echo '== specllama generate "$(PROMPT)"   (to talk with it: $(BIN)/specllama chat)'
	@$(BIN)/specllama generate --stats --seed 1 --max-tokens 200 "$(PROMPT)"

test: lint
	@echo '== pytest'
	@$(BIN)/python -m pytest

lint:
	@echo '== specllama and what its tests need -> .venv'
	@$(PYTHON) scripts/setup.py pair server test
	@echo '== ruff check, ruff format --check, mypy'
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

fix:
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

measure:
	@$(PYTHON) scripts/setup.py pair
	@for what in overhead memory exactness; do \
		echo "== $$what" && $(BIN)/python scripts/measure_$$what.py || exit 1; done

clean:
	rm -rf .venv
