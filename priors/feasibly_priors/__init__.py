"""The weights of feasibly's priors, a safetensors file and a model card for each.

`feasibly.priors.load` loads them.
"""
