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
# Did the run go well? Print its result: it shows which method ran and why, how good the samples
# are, and what they cost.

# %%
import feasibly
from feasibly import priors

denoiser = priors.load("checkerboard")
circle = feasibly.Equality(lambda x: x.norm(dim=1) - 1, tolerance=1e-8)
result = feasibly.sample(denoiser, circle, 256, shape=(2,), seed=0)
print(result)

# %% [markdown]
# * **The method and the reason for it** are on the first two lines. `result.method` holds all
#   settings. `print(feasibly.plan(denoiser, circle, (2,)))` shows both before a run, with what 64
#   unconditional samples reveal about the data, and the expected cost.
# * **Feasible** samples meet the tolerance; `result.feasible` marks them. *Residual / limit* is at
#   most 1 for a feasible sample.
# * **Plausible** samples look like data to the denoiser, as 99 of 100 unconditional samples do.
#   `result.plausible` marks them.
# * **Importance weights** are reported where samples share them. *k-hat* describes the tail of the
#   weights: above 0.7 they are not reliable, and a small or negative value is good. It does not
#   show a mode that no trajectory reached. The [effective sample
#   size](../concepts.md#when-particles-when-posterior-samples-when-ppr) is the number of
#   independent samples that carry the same information.
# * **Evaluations** count forward and backward passes of the network for each sample. *Outside the
#   network* is the share of the time that everything else took.
# * **Seed and samples** identify the run: the same seed and number of samples give the same
#   samples, up to rounding. Where importance weights are shared, a sample also depends on which
#   others are drawn with it.
#
# ## Samples that are not plausible
#
# No point of the next circle is near the board. All samples are feasible, but none is plausible,
# and the run warns. `result.warnings` keeps the texts.

# %%
far = feasibly.Equality(lambda x: x.norm(dim=1) - 6, tolerance=1e-8)
print(feasibly.sample(denoiser, far, 8, shape=(2,), attempts=1))

# %% [markdown]
# If this happens to you, sample without the constraint, `feasibly.sample(denoiser, None, ...)`,
# and look at the residuals. If none is near zero, the model and the constraint are incompatible.
#
# Plausibility is the denoiser's judgement only, so also check what you know about your data, such
# as their range or spectrum.
#
# ## Samples that are not feasible
#
# A run keeps infeasible samples and warns. Leave them out before you average:
# `result.samples[result.feasible]`. If the model can satisfy the constraint, there are two
# possible causes:
#
# * **The projection stopped too early**, because many nonlinear residual components need many
#   iterations. In the example below, twenty of thirty numbers are known only by their sine, and
#   the projections of PPR are too short. Only the last projection decides, and the option `last`
#   gives it more iterations.
# * **The tolerance is below the rounding error.** More iterations do not help then. [Raise it, or
#   sample in float64](constraint.py#choose-the-tolerance).

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
# Is the ensemble as wide as it should be? Its *skill* is the root mean squared error of its mean,
# and its *spread* is the root of its mean variance. If the truth and the samples have the same
# distribution, spread over skill is 1 on average. A ratio below 1 means that the ensemble is too
# narrow.
#
# Here the mean of thirty independent normal variables is observed, for 64 truths. The exact spread
# is 0.98.

# %%
import matplotlib.pyplot as plt

from feasibly import metrics

truth = torch.randn(64, 30, generator=torch.Generator().manual_seed(1))
mean = feasibly.Equality(lambda x: x.mean(dim=1), tolerance=1e-8)
each = feasibly.EachMember(mean, truth.mean(dim=1), repeats=16)  # 16 samples for each truth

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
# *A calibrated ensemble has a flat rank histogram (dotted line).*
#
# PPR is too narrow because it takes a point estimate in place of a posterior sample, and more
# samples do not help. [`CalibratedPPR`](../calibrated.md) samples the posterior instead. [Every
# method](../methods.md) was measured in this way, and [an audit](trust.py) tests yours without a
# known truth.
#
# ## A run that stops
#
# If a step fails, `SamplingError` names the step and the noise level, and its attribute `partial`
# holds the samples that were finished. Draw a long run in batches, `feasibly.sample(...,
# batch_size=16)`, or into [a store](../ensembles.md), which is resumable.
