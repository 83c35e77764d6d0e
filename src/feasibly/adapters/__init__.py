"""Adapters of other libraries: a module imports its library, and nothing here imports it."""
