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
# # Read the report
#
# Print a result, and it says what ran and how it went.

# %%
import feasibly
from feasibly import priors

denoiser = priors.load("checkerboard")
circle = feasibly.Equality(lambda x: x.norm(dim=1) - 1, tolerance=1e-8)
result = feasibly.sample(denoiser, circle, 256, shape=(2,), seed=0)
print(result)

# %% [markdown]
# * **The first lines** name the methods and the reason for them. `result.method` has all their
#   settings.
# * **Feasible**: the violation $c(x)$ is at most the tolerance. Both are *sums* of squared residuals.
#   `result.feasible` marks these members.
# * **Plausible**: the member looks like data to the denoiser. So do 99 of 100 samples without the
#   constraint. `result.plausible` marks these members.
# * **Evaluations** count the network on a batch, forward and backward. *Outside the network* is the
#   share of the time that the rest took.
# * **Seed and members**: the same seed and the same members give the same samples, up to rounding.
#   Where importance weights are shared, a sample depends on which others are sampled with it.
#
# ## Members that are not plausible
#
# No point of this circle is near the board. All members are feasible, and none is plausible. The run
# warns, and `result.warnings` has the texts.

# %%
far = feasibly.Equality(lambda x: x.norm(dim=1) - 6, tolerance=1e-8)
print(feasibly.sample(denoiser, far, 8, shape=(2,), attempts=1))

# %% [markdown]
# If this happens to you, sample without the constraint, `feasibly.sample(denoiser, None, ...)`, and
# look at the residuals. If none comes near zero, model and constraint do not go together.
#
# Plausible is the denoiser's opinion. Also check what you know of your data: their range, their
# spectrum, their smoothness.
#
# ## Members that are not feasible
#
# A run keeps them and warns. Leave them out before you average: `result.samples[result.feasible]`.
# If the model can satisfy the constraint, there are two causes.
#
# * **The projection was not finished.** Many nonlinear residuals need many iterations. Here twenty
#   of thirty numbers are known by their sine, and PPR's projections are too short. The last projection
#   decides: the option `last` gives it more iterations.
# * **The tolerance is below what the numbers resolve.** Then more iterations do not help. [Raise it,
#   or sample in float64](constraint.py#choose-the-tolerance).

# %%
import warnings

import torch

from feasibly.minimizers import WarmLBFGS
from feasibly.oracles import Gaussian

prior = Gaussian(torch.zeros(30), torch.eye(30), feasibly.schedules.LogLogit())
phase = torch.linspace(-1, 1, 20)
sine = feasibly.Observation(lambda x: torch.sin(2 * x[:, :20]), phase, tolerance=1e-8)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", feasibly.InfeasibleWarning)
    for steps in (2, 8, 32):
        ppr = feasibly.TunedPPR(minimize=WarmLBFGS(steps=2), last=WarmLBFGS(steps=steps))
        run = feasibly.sample(prior, sine, 64, shape=(30,), method=ppr)
        print(f"last=WarmLBFGS(steps={steps}): {int(run.feasible.sum())} of 64 feasible")

# %% [markdown]
# ## Spread and skill
#
# The *skill* of an ensemble is the root mean square error of its mean. The *spread* is the root of
# its mean variance. If truth and members have the same distribution, spread over skill is 1 on
# average. Below 1 the ensemble is too narrow.
#
# Here the mean of thirty independent normals is observed, for 64 truths. The right spread is 0.98.

# %%
import matplotlib.pyplot as plt

from feasibly import metrics

truth = torch.randn(64, 30, generator=torch.Generator().manual_seed(1))
mean = feasibly.Equality(lambda x: x.mean(dim=1), tolerance=1e-8)
each = feasibly.EachMember(mean, truth.mean(dim=1), repeats=16)  # 16 members for each truth

figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained", sharey=True)
for ax, method in zip(axes, ("ppr-tuned", "calibrated"), strict=True):
    run = feasibly.sample(prior, each, 64 * 16, shape=(30,), method=method)
    x, y = run.samples.unflatten(0, (64, 16))[:, :, None], truth[:, None]
    ranks = metrics.rank_histogram(x, y)
    ax.bar(range(len(ranks)), ranks, width=1)
    ax.axhline(1 / len(ranks), color="black", linewidth=0.8, linestyle=":")
    ax.set(title=method, xlabel="rank of the truth among the members")
    ratio = metrics.spread_skill_ratio(x, y).item()
    print(f"{method:>10}: spread {metrics.spread(x).item():.2f}, spread / skill {ratio:.2f}")
plt.show()

# %% [markdown]
# *A right ensemble has a flat rank histogram (dotted).*
#
# PPR is too narrow: it takes a point estimate in place of a posterior sample. More members do not help.
# [`CalibratedPPR`](../calibrated.md) samples the posterior. [All methods](../methods.md) have these
# numbers. [An audit](trust.py) tests yours without a known truth.
#
# ## A run that stops
#
# If a step fails, `SamplingError` names the step and the noise level. Its `partial` has the members
# that were finished. Sample a long run in chunks, `feasibly.sample(..., batch_size=16)`, or into [a
# store](../ensembles.md), which can go on.
