# Targets for people who like make; .ci/run does the rest.
PYTHON ?= python

.PHONY: docs smoke

# The site, in docs/_build/html. Executed pages are cached: only what has changed runs again.
docs:
	$(PYTHON) -m sphinx -W --keep-going -b html docs docs/_build/html

# Every page as a script, with few steps.
smoke:
	$(PYTHON) -m pytest -q -m "slow or not slow" tests/test_pages.py
