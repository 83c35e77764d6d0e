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
# # Your constraint
#
# How do you state a hard constraint? Write a function of the samples that is zero where the
# constraint holds. Its value is the *residual* $r(x)$, and the sum of its squares is the
# *violation*, $c(x) = \sum_i r_i(x)^2$. A sample is feasible if its violation is at most the
# *tolerance*.

# %%
import matplotlib.pyplot as plt
import torch

import feasibly
from feasibly import constraints, priors

denoiser = priors.load("checkerboard")

# %% [markdown]
# | you know | write |
# |---|---|
# | $h(x) = 0$ | `Equality(h, tolerance)` |
# | $g(x) \le 0$ | `Inequality(g, tolerance)`, `Bounds(lower, upper, tolerance)` |
# | $A(x) = y$, known exactly | `Observation(A, y, tolerance)`, `Linear(matrix, y, tolerance)` |
# | $A(x) = y$ + errors, measured | `Observation(A, y, noise=std)`, `Linear(matrix, y, noise=std)` |
# | $c(x) = 0$, where $c \ge 0$ | `Scalar(c, tolerance)` |
# | several constraints at once | `Composite([a, b])` |
# | another $y$ for each sample | `EachMember(constraint, targets)` |
#
# The function receives all samples at once, with shape (B, *), and returns (B, ...). The residual
# of a sample must depend on that sample only. Here are four constraints on the same model:


# %%
def wave(x):
    return torch.sin(2 * x[:, 0]) - x[:, 1]


examples = {
    "Equality": feasibly.Equality(wave, 1e-8),
    "Inequality": feasibly.Inequality(lambda x: x.norm(dim=1) - 1.2, 1e-8),
    "Observation": feasibly.Observation(lambda x: x.prod(dim=1), torch.tensor(0.4), 1e-8),
    "Composite": feasibly.Composite(
        [feasibly.Equality(wave, 1e-8), feasibly.Inequality(lambda x: -x[:, 0], 1e-8)]
    ),
}

figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), layout="constrained")
for ax, (name, constraint) in zip(axes, examples.items(), strict=True):
    result = feasibly.sample(denoiser, constraint, 256, shape=(2,), seed=0)
    ax.scatter(*result.samples[result.feasible].T, s=4, linewidths=0)
    ax.set(title=f"{name}, {result.feasible.double().mean():.0%} feasible")
    ax.set(xlim=(-2, 2), ylim=(-2, 2), xticks=[], yticks=[], aspect=1)
plt.show()

# %% [markdown]
# *Each panel shows the feasible samples of one constraint.* Given an inequality, samples in the
# interior keep the model's distribution, and few lie on the boundary ([how few](../default.md)).
#
# ## Noisy measurements
#
# For a noisy measurement, pass the standard deviation of its errors as `noise`: one number, one
# for each component, or a covariance matrix. The samples then follow the posterior. You can
# combine noisy measurements and exact constraints:

# %%
measured = feasibly.Observation(lambda x: x[:, 0], torch.tensor(0.8), noise=0.1)
circle = feasibly.Equality(lambda x: x.norm(dim=1) - 1.2, 1e-8)
both = feasibly.Composite([measured, circle])
print(feasibly.sample(denoiser, both, 64, shape=(2,), seed=0))

# %% [markdown]
# *Chi-square per observed value* is the mean squared misfit, in units of the measurement errors.
# Over many components it averages one; for a single component it can be any number. `feasible`
# refers to the exact part only. In a `Composite` each part is divided by its own tolerance, so
# that the whole has the tolerance 1. Methods that cannot handle noise refuse it. See also the
# [accuracy](../noise.md), and [Stations](stations.py) for tables of measurements.
#
# ## Built-in constraints, and physical units
#
# Masks, integrals, energies, divergence, spectra, obstacles and [more](../api/constraints.md) are
# built in. Most models work on standardised data. State the constraint in physical units, and
# convert it by `in_units`:

# %%
field = torch.randn(1, 24, 24, generator=torch.Generator().manual_seed(0))
warm = constraints.Integral((-2, -1), 288.0, tolerance=1e-4)
wanted = {
    "zero at the edges": constraints.Mask.boundary((24, 24), (0, 1), 0.0, tolerance=1e-6),
    "energy of 0.5": constraints.Energy((-2, -1), 0.5, tolerance=1e-8),
    "mean of 288 K": warm.in_units(mean=287.0, std=9.5),
}
for name, constraint in wanted.items():
    residual, violation = constraint.residual(field), constraint.violation(field)
    print(f"{name:>18}: {residual.shape[1]:3d} residuals, violation {violation.item():.3g}")

# %% [markdown]
# ## Choose the tolerance
#
# The tolerance bounds a **sum of squares**. If each of $m$ residual components may be off by $e$,
# pass `tolerance = m * e**2`, or bound every component by `atol=e` instead.
#
# * **Too small.** float32 resolves numbers of size $s$ to about $10^{-6} s$, so a tolerance below
#   $m (10^{-6} s)^2$ cannot be met. If you need less, sample with `dtype=torch.float64`.
# * **Too large.** PPR and its fallbacks stop as soon as a sample is within the tolerance, so that
#   samples gather at the edge of the allowed band. To allow a whole band, use two inequalities.
# * **Components that cannot all be zero**, such as those of sensors that disagree. Set the
#   tolerance above the least violation; samples end near the least one. A measurement with a
#   `noise` may disagree with others too.
#
# The distribution depends on how you write a residual: $r(x)$ and $e^x r(x)$ have the same zeros,
# but other samples. [Concepts](../concepts.md) says why, and how `log_volume` corrects for it.
#
# Here the residual of a circle is the difference of two large numbers. In float32, rounding makes
# samples count as feasible that are not, and the run warns.


# %%
def on_circle(x):
    return (x.square().sum(dim=1) + 1e4) - (1 + 1e4)


large = feasibly.Equality(on_circle, tolerance=1e-10)
for dtype in (torch.float32, torch.float64):
    model = priors.load("checkerboard").to(dtype)
    result = feasibly.sample(model, large, 64, shape=(2,), dtype=dtype)
    judged = large.is_feasible(result.samples.double())
    print(f"{dtype}: {int(result.feasible.sum())} feasible, in truth {int(judged.sum())}")

# %% [markdown]
# ## Mistakes that are caught
#
# Before sampling, a run tests the constraint on two samples. Note that the residual is
# differentiated: square roots and norms have the derivative NaN at zero, and `torch.where` does
# not hide it.

# %%
mistakes = {
    "a batch axis in y": feasibly.Observation(lambda x: x, torch.zeros(1, 2), 1e-6),
    "reduced over the batch": feasibly.Equality(lambda x: x.sum(), 1e-6),
    "a sample that sees its neighbours": feasibly.Equality(lambda x: x - x.mean(dim=0), 1e-6),
    "no gradient": feasibly.Equality(lambda x: x.round(), 1e-6),
    "a square root in where": feasibly.Equality(
        lambda x: torch.where(x > 0, x.sqrt(), -x) - 0.5, 1e-6
    ),
}
for name, constraint in mistakes.items():
    try:
        feasibly.sample(denoiser, constraint, 2, shape=(2,))
    except (feasibly.ConstraintError, ValueError) as error:
        print(f"{name}:\n  {error}\n")

# %% [markdown]
# For a function f without derivatives, such as another program, use `BlackBox(f, tolerance)` in
# place of `Equality`. A gradient then takes two evaluations for each element of a sample.
#
# Only a run shows whether your model can satisfy the constraint: [Read the report](report.py).
# [Can I trust it?](trust.py) tests the sampler.
