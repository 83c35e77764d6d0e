"""The paper's experiments as problems: data, constraints, ground truth."""
