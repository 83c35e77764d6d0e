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
# # Can I trust it?
#
# Members can be feasible, look like data, and still have the wrong distribution. You have no truth
# to compare with. But your model can make one. Sample $x^*$ from it, state the constraint through
# $x^*$, and sample members. If the sampler is right, $x^*$ can change places with any of them.
#
# `feasibly.audit` does this for many truths and several methods. It says what is wrong and by how
# much. It also says which errors it could not see.
#
# ## A case that passes
#
# This is the shipped checkerboard, with points on a wave.

# %%
import torch
from small import short

import feasibly
from feasibly import figures, priors
from feasibly.oracles import Gaussian

truths = short(128, 16)
denoiser = priors.load("checkerboard")
wave = feasibly.Equality(lambda x: torch.sin(3 * x[:, 0]) - x[:, 1], tolerance=1e-8)
audit = feasibly.audit(denoiser, wave, (2,), methods=("auto",), truths=truths)
print(audit)

# %% [markdown]
# No fault was found. The verdict says how large a fault could be without being seen. More truths
# see smaller faults.
#
# ## A case that fails, and its cure
#
# Thirty independent normals have a given mean. PPR takes a point estimate in place of a posterior
# sample, which makes its members too narrow.

# %%
prior = Gaussian(torch.zeros(30), torch.eye(30), feasibly.schedules.LogLogit())
mean = feasibly.Equality(lambda x: x.mean(dim=1), tolerance=1e-8)
audit = feasibly.audit(prior, mean, (30,), methods=("ppr", "auto"), truths=short(64, 16))
print(audit)

# %% [markdown]
# The default does not have this fault. `audit.best` is the recommended method, and `sample` takes
# it.

# %%
result = feasibly.sample(prior, mean, 256, (30,), method=audit.best)
print(f"standard deviation {result.samples.std():.3f}, exactly {(1 - 1 / 30) ** 0.5:.3f}")

# %%
covered = {c.name: c.examination.covered for c in audit.candidates if c.examination}
figures.coverage(covered)

# %% [markdown]
# *Regions around random points should hold a given share of the truths. The curve of a right
# sampler is the diagonal, up to chance. PPR's regions hold too few.*
#
# `audit.save_html("audit.html")` writes a page with such figures and rank histograms. From the
# shell, with a file of your own:
#
# ```
# python -m feasibly audit --denoiser my_project:denoiser --constraint my_project:constraint --shape 32 32
# ```
#
# ## What is tested
#
# | family | what should hold |
# |---|---|
# | spread | members are as far from one another as the truth is from them |
# | centre | the truth is as often above the members as below |
# | coverage | regions around random points hold the share of truths that they should ([TARP](https://arxiv.org/abs/2302.03026)) |
# | modes | clusters have as many of the truths as of the members |
# | neighbours | truths are no nearer to one another than to members |
# | support | members are as near to other samples, and as like data to the denoiser |
# | summaries | size, mean, roughness and your own `statistics` rank evenly |
#
# Members are first moved onto their statements, by a few steps of steepest descent. So what the
# tolerance allows is no fault. Directions that the constraint fixes are left out. Truths are samples
# that the monitor finds plausible, since implausible members are resampled.
#
# If a sampler is right, the truth and its members are exchangeable. So the distribution of every
# score is known exactly: choose one entry of each row at random as its truth. A family looks at
# many directions, and its p-value is that of the largest score. Families are adjusted by Holm's
# method, and candidates share the level. The [reference](../api/audit.md) has the formulas.
#
# The size of a fault is that along the worst of many directions. So it is rather too large, by up to
# a factor of two at 64 truths. Families are not independent: members that are too narrow may also
# be found off in the weights of clusters.
#
# ## What is recommended
#
# 1. Members must be feasible, if those of any candidate are.
# 2. The energy score counts. It is least for the right distribution, and a fault raises it by its
#    size. So a fault too small to matter costs no recommendation. Methods whose score is above the
#    least with 95 % confidence are out.
# 3. Of the others it is the first without a fault, in the order of `methods`. So put first what
#    you would take without an audit. A cheaper one of which no fault was found is named too.
#
# ## How right it is
#
# On problems with an exact distribution, the true distance of each candidate is known. It is the
# sliced Wasserstein distance to the truth over that of the truth to itself, from
# [the study of the default](../default.md). The table is of four audits of each problem, with 64 truths
# and 7 members.
#
# * *Regret* is the recommended candidate's distance over the best one's.
# * The distance of 1024 members is itself known within some 20 %. The energy score of 64 truths
#   cannot tell small differences. So a recommendation within 0.3 of the best is hardly worse.
# * *Faults found* are counted among candidates far from the truth, above 2. Infeasible members
#   count as a fault.
# * Faults found in candidates below 1.2 are false alarms, or faults that are there and small.
# * *Without auto* an audit has two candidates, of which one is given first. *Always* is to take
#   that one without an audit.
#
# ```
# python -m experiments run audit
# python -m experiments tables audit
# ```
#
# <!-- made: audit -->
# | problems | within 5% of the best | or within 0.3 of it | regret, median / 90 % | faults found, of those above 2 | and of those below 1.2 | evaluations, millions |
# |---|---:|---:|---:|---:|---:|---:|
# | two modes (7) | 27 of 28 | 28 of 28 | 1.00 / 1.01 | 24 of 32 | 1 of 40 | 0.31 |
# | spheres (5) | 20 of 20 | 20 of 20 | 1.00 / 1.01 | 1 of 20 | 0 of 36 | 0.21 |
# | curves (6) | 19 of 24 | 20 of 24 | 1.00 / 1.40 | 9 of 28 | 0 of 16 | 0.24 |
# | Data2D (5) | 14 of 20 | 14 of 20 | 1.00 / 1.61 | 8 of 24 | 3 of 16 | 0.24 |
# | clusters (7) | 23 of 28 | 24 of 28 | 1.00 / 1.34 | 15 of 24 | 0 of 24 | 0.56 |
# | Gaussian (10) | 19 of 40 | 40 of 40 | 1.06 / 1.16 | 37 of 40 | 3 of 72 | 0.76 |
# | fields (4) | 11 of 16 | 16 of 16 | 1.00 / 1.05 | 16 of 16 | 4 of 32 | 0.63 |
# | all (44) | 133 of 176 | 162 of 176 | 1.00 / 1.22 | 110 of 184 | 11 of 236 | 0.31 |
# | two modes to Data2D (23), 64 truths | 80 of 92 | 82 of 92 | 1.00 / 1.40 | 42 of 104 | 4 of 108 | 0.25 |
# | two modes to Data2D (23), 256 truths | 18 of 23 | 20 of 23 | 1.00 / 1.40 | 18 of 26 | 1 of 27 | 1.02 |
# | all, always auto | 136 of 176 | 164 of 176 | 1.00 / 1.16 |  |  |  |
# | without auto, calibrated first | 147 of 176 | 147 of 176 | 1.00 / 1.47 |  |  |  |
# | without auto, always calibrated | 144 of 176 | 144 of 176 | 1.00 / 1.37 |  |  |  |
# | without auto, ppr first | 139 of 176 | 139 of 176 | 1.00 / 1.54 |  |  |  |
# | without auto, always ppr | 44 of 176 | 52 of 176 | 1.80 / 10.98 |  |  |  |
# <!-- end -->
#
# * The default was chosen on these problems. So an audit cannot do much better than *always auto*,
#   and does hardly worse.
# * Given PPR first, an audit leaves it in most of the cases in which it is the worse one. Given
#   calibrated samples first, 64 truths change little.
# * Where few directions are free, 64 truths miss more than half of the faults. 256 find two in
#   three.
# * Of the eleven faults found below 1.2, five are of the default in 256 dimensions. Its members are
#   too wide there by 1 to 5 %; calibrated ones have no fault there. Two are of PPR on a board, and
#   256 truths find that one too. Four are of different candidates, and may be chance.
# * The true distance is under the constraint as it is given, which may be far from typical. An
#   audit sees typical statements.
#
# ## Known faults
#
# Each sampler has a fault that is known. The default on the same problem has none.
#
# ```
# python -m experiments run faults
# ```
#
# <!-- made: faults -->
# | problem, method | known fault | truths | audits that find a fault | by | least p, median | spread |
# |---|---|---:|---:|---|---:|---:|
# | 30 normals, PPR | spread 0.73 | 64 | 1 of 1 | spread, coverage, support, summaries | 4e-24 | 0.78 |
# | 30 normals, HDC | spread | 64 | 1 of 1 | spread, coverage, support, summaries | 2e-37 | 0.72 |
# | 30 normals, default | none | 64 | 0 of 1 | - | 0.01 | 1.00 |
# | heat, PPR | distribution of the decay | 64 | 1 of 1 | spread, centre, coverage, modes, neighbours, support, summaries | 1e-17 | 0.64 |
# | heat, ECI | distribution of the decay | 64 | 1 of 1 | spread, centre, coverage, modes, neighbours, support, summaries | 5e-20 | 0.71 |
# | heat, default | none | 64 | 0 of 1 | - | 0.7 | 1.02 |
# | checkerboard, post-hoc | members off the board | 64 | 1 of 1 | support | 0.0002 | 1.20 |
# | checkerboard, default | none | 64 | 0 of 1 | - | 0.1 | 1.16 |
# | two modes, wrong weights | weights off by 0.1 | 64 | 2 of 20 | centre, modes, summaries, spread | 0.05 | 0.97 |
# | two modes, wrong weights | weights off by 0.1 | 256 | 12 of 20 | centre, modes, summaries, spread | 0.001 | 0.97 |
# | two modes, wrong weights | weights off by 0.1 | 512 | 16 of 20 | centre, modes, summaries, spread | 0.0004 | 0.96 |
# | two modes, default | none | 64 | 1 of 20 | neighbours | 0.1 | 1.01 |
# | two modes, default | none | 256 | 0 of 20 | - | 0.08 | 1.00 |
# | two modes, default | none | 512 | 0 of 20 | - | 0.1 | 1.00 |
# <!-- end -->
#
# ## The shipped priors
#
# The next audits are of the first constraint of [Data2D](../data2d.md), and of two
# [fields](../ks.md). The energy score is better if lower.
#
# <!-- made: audit-shipped -->
# | prior, method | truths x members | energy score | feasible | evaluations | verdict |
# |---|---|---:|---:|---:|---|
# | checkerboard, auto | 128 x 7 | 0.916 ± 0.04 | 100.0% | 265 | no fault found |
# | checkerboard, calibrated | 128 x 7 | 0.89 ± 0.034 | 100.0% | 164 | truths are nearer to one another than to members |
# | checkerboard, ppr | 128 x 7 | 0.885 ± 0.035 | 99.9% | 155 | 0.1% of members are infeasible; no fault found |
# | banana, auto | 128 x 7 | 0.758 ± 0.049 | 100.0% | 263 | no fault found |
# | banana, calibrated | 128 x 7 | 0.772 ± 0.042 | 100.0% | 148 | no fault found |
# | banana, ppr | 128 x 7 | 0.767 ± 0.042 | 100.0% | 144 | no fault found |
# | weather, wind, auto | 16 x 2 | 50.8 ± 1.3 | 100.0% | 537 | too wide by 35% (± 6%); members are farther from other samples than truths are: some leave the data |
# | weather, wind, ppr | 16 x 2 | 47.2 ± 2.6 | 100.0% | 1992 | the size is off centre |
# | ks, sine-3, auto | 16 x 2 | 6.23 ± 1.1 | 100.0% | 1705 | no fault found |
# | ks, sine-3, ppr | 16 x 2 | 7.57 ± 1.2 | 100.0% | 1447 | no fault found |
# <!-- end -->
#
# * On the weather's wind the audit finds the default's fault: its members are too wide, and some
#   leave the data. It recommends PPR, whose energy score is lower. The [weather page](../weather.md)
#   measured the same against the truth.
# * On Kuramoto-Sivashinsky the default has the lowest energy score and no fault. With 16 truths
#   only large faults would show.
# * These audits of fields took 15 and 35 minutes on one core.
#
# ## Limits
#
# * **Size.** 64 truths with 7 members see an error of a tenth of the spread in 30 dimensions, and
#   of a third to a half where one direction is free. Mode weights need more: an error of 0.1 is
#   found in 16 of 20 audits of 512 truths. The verdict says what would not show.
# * **Many directions.** If modes differ along one direction of hundreds, clusters are not the modes.
#   Then a wrong weight is not found. Give a function that tells the modes apart as one of the
#   `statistics`.
# * **Chance.** If all candidates are right, one audit in twenty finds a fault nevertheless
#   (`level=0.05`). Repeat it with another `seed`.
# * **Your own target.** Truths are samples of the model, so statements are typical ones. Of four
#   samples for each truth (`near=4`) those are taken whose residuals are nearest to zero. A note
#   says if your target is unlike theirs. Then a method may be right on them and wrong on yours, and a
#   larger `near` helps.
# * **Inequalities** stay as they are. Truths satisfy them.
# * **Data** must be independent samples. Steps of one trajectory are not, and any sampler is found
#   at fault with them.
# * **The model.** An audit trusts it. With `data=` truths are taken from data that the model has
#   not seen. The model's own samples are tested too. So faults of the model can be told from those
#   of the sampler.
# * **Cost.** It is said before the first member. `budget=` bounds what is planned, by fewer truths.
#   `path=` keeps members in stores: several processes may share an audit, and one that was stopped
#   goes on.
#
# ## A target for each member
#
# An audit has a statement for each member in one run. So can you: `EachMember(constraint, targets)`
# has a row of targets for each member. For observations $A(x_i) = y_i$ it is
# `feasibly.EachMember(feasibly.Equality(A, tolerance), y)`. Samplers, stores and the shell take it
# like any constraint. A member has its target by its index, in whatever chunk it is.
