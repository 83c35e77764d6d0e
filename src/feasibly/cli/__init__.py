"""The commands of `python -m feasibly`."""
