"""Tests of a model and of a constraint before use."""
