# ---
# jupytext:
#   text_representation:
#     extension: .py
#     format_name: percent
# kernelspec:
#   display_name: Python 3
#   name: python3
# ---

# %% [markdown]
# # State your constraint
#
# A constraint is a function of a batch of samples that is zero where the constraint holds: the
# *residual*. The *violation* is the sum of its squares, one number a sample. A sample is feasible
# if its violation is at most the *tolerance*.

# %%
import matplotlib.pyplot as plt
import torch
from small import short
from torch import Tensor

import feasibly
from feasibly import constraints, priors

denoiser = priors.load("checkerboard")
members = short(512, 32)

# %% [markdown]
# ## Equalities, inequalities, observations
#
# | you know | write |
# |---|---|
# | h(x) = 0 | `Equality(h, tolerance)` |
# | g(x) <= 0 | `Inequality(g, tolerance)`, `Bounds(lower, upper, tolerance)` |
# | A(x) = y, known exactly | `Observation(A, y, tolerance)`, `Linear(matrix, y, tolerance)` |
# | A(x) = y + errors, measured | `Observation(A, y, noise=std)`, `Linear(matrix, y, noise=std)` |
# | c(x) = 0, c without a sign | `Scalar(c, tolerance)` |
# | several | `Composite([a, b])` |
#
# The function gets all members at once, shape (B, *), and returns (B, ...). The residual of a
# sample may depend on that sample alone.

# %%
examples = {
    "Equality": feasibly.Equality(lambda x: torch.sin(2 * x[:, 0]) - x[:, 1], 1e-8),
    "Inequality": feasibly.Inequality(lambda x: x.norm(dim=1) - 1.2, 1e-8),
    "Observation": feasibly.Observation(lambda x: x.prod(dim=1), torch.tensor(0.4), 1e-8),
    "Composite": feasibly.Composite(
        [
            feasibly.Equality(lambda x: torch.sin(2 * x[:, 0]) - x[:, 1], 1e-8),
            feasibly.Inequality(lambda x: -x[:, 0], 1e-8),
        ]
    ),
}

figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), layout="constrained")
for ax, (name, constraint) in zip(axes, examples.items(), strict=True):
    result = feasibly.sample(denoiser, constraint, members, shape=(2,), seed=0)
    ax.scatter(*result.samples[result.feasible].T, s=2, linewidths=0)
    ax.set(title=f"{name}, {result.feasible.double().mean():.0%} feasible")
    ax.set(xlim=(-2, 2), ylim=(-2, 2), xticks=[], yticks=[], aspect=1)
plt.show()

# %% [markdown]
# **Samples inside of an inequality keep the prior's distribution.** If unconditional samples often
# fall inside, `feasibly.sample` samples without the constraint, and keeps those that do. The other
# members, and all members of an inequality that is far, weigh several states by how likely they
# end inside. So few members lie on the boundary, even where one sample in two hundred falls inside
# ([how few](../default.md#inside-of-inequalities)).
#
# ## Observations with errors
#
# A measurement is not exact. Give the standard deviation of its errors as `noise`: one number, one
# for each value, or their covariance. Samples are then of the posterior, given what was measured.
# They may stand beside constraints that are exact.

# %%
measured = feasibly.Observation(lambda x: x[:, 0], torch.tensor(0.8), noise=0.1)
circle = feasibly.Equality(lambda x: x.norm(dim=1) - 1.2, 1e-8)
both = feasibly.Composite([measured, circle])
print(feasibly.sample(denoiser, both, members, shape=(2,), seed=0))

# %% [markdown]
# *Chi-square a value* is the mean square of the misfits, in units of their errors. On average over
# observations it is one. `result.chi_square` has it for each member. `feasible` is of what is exact.
#
# `calibrated`, `particles`, `mmps` and `dps` take noise. Other methods would meet the observation
# exactly, and refuse it ([how right](../noise.md)). Tables of stations become such observations by
# [`feasibly.weather.Stations`](stations.py).
#
# ## By name
#
# The common constraints have names, formulas and tests: masks, integrals, energies, divergence,
# equations in time, spectra, quantiles, obstacles and more.
# [The reference](../api/constraints.md) lists them all.

# %%
field = torch.randn(1, 24, 24)
wanted = {
    "mean of 0.3": constraints.Integral((-2, -1), 0.3, tolerance=1e-8),
    "energy of 0.5": constraints.Energy((-2, -1), 0.5, tolerance=1e-8),
    "zero at the edges": constraints.Mask.boundary((24, 24), (0, 1), 0.0, tolerance=1e-6),
    "a spectrum": constraints.Spectrum(torch.tensor([0.1, 0.05]), dims=2, tolerance=1e-6),
}
for name, constraint in wanted.items():
    count = constraint.residual(field).shape[1]
    print(f"{name:>18}: {count:3d} residuals, violation {constraint.violation(field).item():.3g}")

# %% [markdown]
# ## Units
#
# Most models are trained on standardised data. State the constraint in physical units, and convert
# it by `.in_units(mean, std)`.

# %%
temperature = constraints.Integral((-2, -1), 288.0, tolerance=1e-4)
standardised = temperature.in_units(mean=287.0, std=9.5)
x = torch.randn(2, 24, 24)
print(standardised, standardised.violation(x))

# %% [markdown]
# ## Choose the tolerance
#
# It bounds a **sum of squares**, over all residuals. For m residuals that may each be off by e,
# write `tolerance = m * e**2`. Two limits:
#
# * *Below:* float32 has seven digits. It does not resolve a residual of numbers of size s below
#   about 1e-6 s. No sample meets a tolerance below `m * (1e-6 * s)**2`. Sample in
#   `dtype=torch.float64` if you need less.
# * *Above:* a sample stops moving once it is within the tolerance. A loose tolerance is a band
#   around the constraint, and samples gather at its edge.
#
# Here a circle is written as the difference of two large numbers. In float32 they differ by a
# multiple of 0.001 or not at all. So float32 calls samples feasible that float64 does not.
# Sampling in float64 helps.

# %%
offset = 1e4


def circle(x: Tensor) -> Tensor:
    return (x.square().sum(dim=1) + offset) - (1 + offset)


constraint = feasibly.Equality(circle, tolerance=1e-10)
exact = priors.load("checkerboard").double()
single = feasibly.sample(denoiser, constraint, 64, shape=(2,))
double = feasibly.sample(exact, constraint, 64, shape=(2,), dtype=torch.float64)
for name, result in {"float32": single, "float64": double}.items():
    judged = constraint.is_feasible(result.samples.double())
    print(f"{name}: {int(result.feasible.sum())} of 64 feasible, in truth {int(judged.sum())}")

# %% [markdown]
# ## Derivatives
#
# The residual is differentiated. A square root at zero, a norm at zero and `torch.where` around a
# division give NaN gradients. The named constraints avoid them, and a run refuses a constraint
# whose gradient is not finite. Put a function without derivatives, such as another program, into
# `BlackBox`. It takes central differences, two evaluations for each element of a sample. So it is
# for small samples.

# %%
try:
    rough = feasibly.Equality(lambda x: torch.where(x > 0, x.sqrt(), -x) - 0.5, 1e-8)
    feasibly.sample(denoiser, rough, 4, shape=(2,))
except feasibly.ConstraintError as error:
    print(error)

# %% [markdown]
# ## Mistakes that are caught
#
# Before a run, the constraint is tested on two samples.

# %%
mistakes = {
    "a batch axis in y": feasibly.Observation(lambda x: x, torch.zeros(1, 2), 1e-6),
    "reduced over the batch": feasibly.Equality(lambda x: x.sum(), 1e-6),
    "a sample that sees its neighbours": feasibly.Equality(lambda x: x - x.mean(dim=0), 1e-6),
    "no gradient": feasibly.Equality(lambda x: x.round(), 1e-6),
}
for name, constraint in mistakes.items():
    try:
        feasibly.sample(denoiser, constraint, 2, shape=(2,))
    except (feasibly.ConstraintError, ValueError) as error:
        print(f"{name}:\n  {error}\n")

# %% [markdown]
# No test shows whether the constraint is *possible* for your model. If no member comes near, think
# about that first. [Read the report](report.py) says how to find out.
