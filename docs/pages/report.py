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
# A run returns its samples and an account. This page goes through the account, and through what
# can go wrong.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from small import short

import feasibly
from feasibly import figures, metrics, priors
from feasibly.oracles import Gaussian
from feasibly.problems.distributions import Checkerboard

denoiser = priors.load("checkerboard")
wave = feasibly.Equality(lambda x: torch.sin(3 * x[:, 0]) - x[:, 1], tolerance=1e-8)
members = short(512, 32)
result = feasibly.PPR(denoiser, wave).sample(members, shape=(2,), seed=0)
print(result)

# %% [markdown]
# * **The first line** has all settings, those that PPR chose included: enough to repeat the run.
# * **Feasible** members have a violation c(x) of at most the tolerance. Both are *sums* of squared
#   residuals, in the squared units of the residual. `result.feasible` says which members.
# * **Calls** count the network on a batch, forward and backward. *Outside the network* is the
#   share of time that constraint and minimizer took.
# * **Seed and members**: a member depends on the seed and its index, and on nothing else. Sample
#   members 100 to 131 tomorrow and they will be the same as in one run of 1000, up to rounding.
#
# `result.trace` has a snapshot of every step.

# %%
figures.trace({"PPR": result.trace}, result.tolerance)

# %% [markdown]
# Above a noise of 0.75 nothing is projected here. Then the violation falls, and in the last steps
# most members pass the tolerance. Those that do not are drawn again, up to three times.
#
# ## In C, and in S
#
# C is the set of feasible samples, S the support of the data. A sample is of use if it lies in
# both. Feasibility is always known. The support is not, so check what you know of your data: their
# range, their spectrum, their smoothness, a classifier's verdict. Look at shares *in C and S*
# together: a method can buy one with the other.

# %%
board = Checkerboard()
control = feasibly.PostHoc(denoiser, wave).sample(members, shape=(2,), seed=0)
for name, run in {"PPR": result, "projected once at the end": control}.items():
    in_s = board.in_support(run.samples)
    both = (in_s & run.feasible).double().mean()
    print(f"{name:>26}: in C {run.feasible.double().mean():.1%}, in C and S {both:.1%}")

# %% [markdown]
# ## Members that are not feasible
#
# They are kept, marked, and warned of: `InfeasibleWarning`. Never average over an ensemble without
# looking at `result.feasible`. There are three causes.
#
# **The constraint is out of the model's reach.** No point of this circle is near the board.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    far = feasibly.Equality(lambda x: x.norm(dim=1) - 6, tolerance=1e-8)
    feasibly.PPR(denoiser, far).sample(64, shape=(2,))
print(*(warning.message for warning in caught), sep="\n")

# %% [markdown]
# More iterations would push samples there, and off the data. That is not what you want. Draw some
# unconditional samples (`feasibly.Ancestral`) and look at their residuals: if none comes near
# zero, model and constraint do not go together.
#
# **The projection was not finished.** Many nonlinear residuals take many iterations. Here twenty
# of thirty numbers are known by their sine, and the projections are short. The last projection is
# the one that decides: `last_steps` lets it go on. `minimize=` gives all of them more.

# %%
prior = Gaussian(torch.zeros(30), torch.eye(30), feasibly.schedules.LogLogit())
phase = torch.linspace(-1, 1, 20)
sine = feasibly.Observation(lambda x: torch.sin(2 * x[:, :20]), phase, tolerance=1e-8)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", feasibly.InfeasibleWarning)
    for last in (2, 8, 32, 128):
        run = feasibly.PPR(
            prior,
            sine,
            minimize=feasibly.minimizers.WarmLBFGS(steps=2),
            last_steps=last,
            retries=0,
        ).sample(64, shape=(30,))
        print(f"last_steps={last:3d}: {int(run.feasible.sum())} of 64 feasible")

# %% [markdown]
# **The tolerance is below what the numbers resolve.** See [choose the
# tolerance](constraint.py#choose-the-tolerance). If the worst violation hardly changes with
# `last_steps`, this is the likely cause: sample in float64, or raise the tolerance.
#
# ## Spread and skill
#
# The *skill* of an ensemble is the root mean square error of its mean; the *spread* the root of
# its mean variance. Where the reference is a draw of the same law as the members, spread over
# skill is 1 on average. Below 1 the ensemble is too sure of itself.
#
# Under a Gaussian prior the constrained law is known, so PPR can be held to it. The mean of thirty
# numbers is observed.

# %%
runs, per_run = short(16, 2), short(64, 8)
truth = torch.randn(runs, 30, generator=torch.Generator().manual_seed(1))
ensembles = []
for i, y in enumerate(truth):
    mean = feasibly.Equality(lambda x, y=y: x.mean(dim=1) - y.mean(), tolerance=1e-8)
    ensembles.append(feasibly.PPR(prior, mean).sample(per_run, shape=(30,), seed=i).samples)
x, y = torch.stack(ensembles)[:, :, None], truth[:, None]

print(f"spread {metrics.spread(x).item():.2f}, exact {(1 - 1 / 30) ** 0.5:.2f}")
print(f"skill {metrics.skill(x, y).item():.2f}")
print(f"spread / skill {metrics.spread_skill_ratio(x, y).item():.2f}")

# %% [markdown]
# So it is: means are right, **the spread is too narrow** in directions that the constraint leaves
# free. This is a bias of the method and not of the run: it puts a point estimate where a posterior
# draw belongs. More members do not help. [What is known of each method](../methods.md) has the
# same numbers for the others; [`CalibratedPPR`](../calibrated.md), which draws, does not have this
# bias.
#
# The rank histogram shows it without a formula. The truth falls outside the members too often.

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
# PPR projects below `sigma_max`, whose default is for data of unit variance. Here the same prior
# has a standard deviation of 0.1. With the default, projections begin while the data are still
# drowned in noise. That costs calls and some spread.

# %%
small = Gaussian(torch.zeros(30), 0.01 * torch.eye(30), feasibly.schedules.LogLogit())
mean = feasibly.Equality(lambda x: 10 * x.mean(dim=1), tolerance=1e-8)
for name, options in {"default": {}, "scaled": {"sigma_max": 0.075}}.items():
    run = feasibly.PPR(small, mean, **options).sample(per_run, shape=(30,))
    print(
        f"{name}: spread {run.samples.std() / 0.1:.2f} standard deviations, "
        f"{run.calls.forward} forward and {run.calls.backward} backward calls"
    )

# %% [markdown]
# ## The read-out
#
# `readout="clean"`, PPR's default, returns the projected estimate: the one that is feasible. The
# last *state* still has the last noise level in it, and meets a tolerance only by luck. If you
# compare methods, compare like with like.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore", feasibly.InfeasibleWarning)
    for readout in ("clean", "denoise", "state"):
        run = feasibly.PPR(denoiser, wave, readout=readout).sample(members, shape=(2,))
        print(f"{readout:>8}: {run.feasible.double().mean():.1%} feasible")

# %% [markdown]
# ## A run that stops
#
# If a step fails, or every member becomes non-finite, `SamplingError` says at which step and noise
# level, and has what was finished before in its attribute `partial`. Long runs are drawn in
# chunks: `sample(..., chunk=16)`.
