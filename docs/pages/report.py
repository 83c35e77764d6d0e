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
# A run returns its samples and a summary. This page explains the summary, and what can go wrong.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from small import short

import feasibly
from feasibly import figures, metrics, priors
from feasibly.minimizers import WarmLBFGS
from feasibly.oracles import Gaussian
from feasibly.problems.distributions import Checkerboard

denoiser = priors.load("checkerboard")
wave = feasibly.Equality(lambda x: torch.sin(3 * x[:, 0]) - x[:, 1], tolerance=1e-8)
members = short(512, 32)
result = feasibly.sample(denoiser, wave, members, shape=(2,), seed=0, method="ppr")
print(result)

# %% [markdown]
# * **The first lines** name the samplers, and the reason for them. `result.method` has all their
#   settings, which are enough to repeat the run.
# * **Feasible** members have a violation c(x) of at most the tolerance. Both are *sums* of squared
#   residuals, in the squared units of the residual. `result.feasible` says which members.
# * **Evaluations** count the network on a batch, forward and backward. *Outside the network* is the
#   share of time that constraint and minimizer took.
# * **Seed and members**: a member depends on the seed and its index, and on nothing else. Members
#   100 to 131 sampled tomorrow are the same as in one run of 1000, up to rounding.
#
# `result.trace` has a snapshot of every step.

# %%
figures.trace({"PPR": result.trace}, result.tolerance)

# %% [markdown]
# Above a noise of 0.75 nothing is projected here. Then the violation falls, and in the last steps
# most members pass the tolerance. Those that do not are resampled, up to three times.
#
# ## Feasible, and on-manifold
#
# A sample is useful if it is feasible and on the data's support. Feasibility is always known. The
# support is not, so check what you know of your data: their range, their spectrum, their
# smoothness, a classifier's verdict. Look at the share that is both: a method can gain one and
# lose the other.

# %%
board = Checkerboard()
post_hoc = feasibly.sample(denoiser, wave, members, shape=(2,), seed=0, method="post-hoc")
for name, run in {"PPR": result, "post-hoc projection": post_hoc}.items():
    both = (board.in_support(run.samples) & run.feasible).double().mean()
    print(f"{name:>20}: feasible {run.feasible.double().mean():.1%}, on-manifold too {both:.1%}")

# %% [markdown]
# ## Members that are not feasible
#
# A run keeps them, marks them, and gives an `InfeasibleWarning`. Look at `result.feasible` before
# you average over an ensemble. There are three causes.
#
# **The model has no feasible samples.** No point of this circle is near the board.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    far = feasibly.Equality(lambda x: x.norm(dim=1) - 6, tolerance=1e-8)
    feasibly.sample(denoiser, far, 64, shape=(2,), method="ppr")
print(*(warning.message for warning in caught), sep="\n")

# %% [markdown]
# More iterations would move samples there, and off the data. Sample the model without the
# constraint, `feasibly.sample(denoiser, None, ...)`, and look at the residuals. If none comes near
# zero, model and constraint do not go together.
#
# **The projection was not finished.** Many nonlinear residuals take many iterations. Here twenty
# of thirty numbers are known by their sine, and the projections are short. The last projection
# decides. The option `last` gives it more iterations, and `minimize` gives all of them more.

# %%
prior = Gaussian(torch.zeros(30), torch.eye(30), feasibly.schedules.LogLogit())
phase = torch.linspace(-1, 1, 20)
sine = feasibly.Observation(lambda x: torch.sin(2 * x[:, :20]), phase, tolerance=1e-8)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", feasibly.InfeasibleWarning)
    for steps in (2, 8, 32, 128):
        options = {"minimize": WarmLBFGS(steps=2), "last": WarmLBFGS(steps=steps)}
        run = feasibly.sample(
            prior, sine, 64, shape=(30,), method="ppr", attempts=1, options=options
        )
        print(f"last=WarmLBFGS(steps={steps}): {int(run.feasible.sum())} of 64 feasible")

# %% [markdown]
# **The tolerance is below what the numbers resolve.** See [choose the
# tolerance](constraint.py#choose-the-tolerance). This is the likely cause if more iterations of
# the last projection hardly change the worst violation. Sample in float64, or raise the tolerance.
#
# ## Spread and skill
#
# The *skill* of an ensemble is the root mean square error of its mean. The *spread* is the root of
# its mean variance. If reference and members have the same distribution, spread over skill is 1 on
# average. Below 1 the ensemble is too narrow.
#
# Under a Gaussian prior the constrained distribution is known. Here the mean of thirty numbers is
# observed.

# %%
runs, per_run = short(16, 2), short(64, 8)
truth = torch.randn(runs, 30, generator=torch.Generator().manual_seed(1))
ensembles = []
for i, y in enumerate(truth):
    mean = feasibly.Equality(lambda x, y=y: x.mean(dim=1) - y.mean(), tolerance=1e-8)
    ensembles.append(
        feasibly.sample(prior, mean, per_run, shape=(30,), seed=i, method="ppr").samples
    )
x, y = torch.stack(ensembles)[:, :, None], truth[:, None]

print(f"spread {metrics.spread(x).item():.2f}, exact {(1 - 1 / 30) ** 0.5:.2f}")
print(f"skill {metrics.skill(x, y).item():.2f}")
print(f"spread / skill {metrics.spread_skill_ratio(x, y).item():.2f}")

# %% [markdown]
# Means are right. **The spread is too narrow** in directions that the constraint leaves free. This
# is a bias of the method and not of the run: it takes a point estimate in place of a posterior
# sample. More members do not help. [Every method](../methods.md) has these numbers for the others.
# [`CalibratedPPR`](../calibrated.md) samples the posterior, and does not have this bias.
#
# The rank histogram shows the bias too. The truth falls outside the members too often.

# %%
ranks = metrics.rank_histogram(x, y)
figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
ax.bar(range(len(ranks)), ranks, width=1)
ax.axhline(1 / len(ranks), color="black", linewidth=0.8, linestyle=":")
ax.set(xlabel="rank of the truth among the members", ylabel="share")
plt.show()

# %% [markdown]
# ## Data of another scale
#
# PPR projects below `sigma_max`. What `feasibly.sample` chooses is for data of unit variance. Here
# the same prior has a standard deviation of 0.1, and projections begin at noise far larger than
# the data. That costs evaluations and some spread.

# %%
small = Gaussian(torch.zeros(30), 0.01 * torch.eye(30), feasibly.schedules.LogLogit())
mean = feasibly.Equality(lambda x: 10 * x.mean(dim=1), tolerance=1e-8)
for name, options in {"default": {}, "scaled": {"sigma_max": 0.075}}.items():
    run = feasibly.sample(small, mean, per_run, shape=(30,), method="ppr", options=options)
    print(
        f"{name}: spread {run.samples.std() / 0.1:.2f} standard deviations, "
        f"{run.evaluations.forward} forward and {run.evaluations.backward} backward evaluations"
    )

# %% [markdown]
# ## The output
#
# PPR's `output="projected"` is the projected estimate, which is feasible. The last *state* still
# has the last noise level in it, and meets a tolerance only by luck. `denoised` is the denoised
# mean of that state. Compare methods by the same output.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore", feasibly.InfeasibleWarning)
    for output in ("projected", "denoised", "state"):
        options = {"output": output}
        run = feasibly.sample(denoiser, wave, members, shape=(2,), method="ppr", options=options)
        print(f"{output:>9}: {run.feasible.double().mean():.1%} feasible")

# %% [markdown]
# ## A run that stops
#
# If a step fails, or every member becomes non-finite, `SamplingError` names the step and the noise
# level. Its attribute `partial` has the members that were finished before. Sample a long run in
# chunks: `feasibly.sample(..., chunk=16)`.
