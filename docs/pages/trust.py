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

import feasibly
from feasibly import figures, priors
from feasibly.oracles import Gaussian

denoiser = priors.load("checkerboard")
wave = feasibly.Equality(lambda x: torch.sin(3 * x[:, 0]) - x[:, 1], tolerance=1e-8)
audit = feasibly.audit(denoiser, wave, (2,), methods=("auto",), truths=128)
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
audit = feasibly.audit(prior, mean, (30,), methods=("ppr-tuned", "auto"), truths=64)
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
#    If all have faults, it is the one with the least score, and the audit says so.
#
# [How right it is](../audits.md): known faults that it finds, recommendations where the answer is
# known, and audits of the shipped priors.
#
# ## Limits
#
# * **Size.** 64 truths with 7 members see an error of a tenth of the spread in 30 dimensions, and
#   of a third to a half where one direction is free. Mode weights need more: an error of 0.1 is
#   found in 16 of 20 audits of 512 truths. The verdict says what would not show.
# * **Many directions.** If modes differ along one direction of hundreds, clusters are not the modes.
#   Then a wrong weight is not found. Give a function that tells the modes apart, such as
#   `statistics={"side": lambda x: (x[:, 0] > 0).double()}`.
# * **Chance.** If all candidates are right, one audit in twenty finds a fault nevertheless
#   (`level=0.05`). Repeat it with another `seed`.
# * **Your own target.** Truths are samples of the model, so statements are typical ones. Of four
#   samples for each truth (`near=4`) those are taken whose residuals are nearest to zero. If a run
#   says *far from most unconditional samples*, or a note that your target is unlike theirs, take
#   `near=64`. A method may be right on typical targets and wrong on yours.
# * **Errors.** Observations with errors get errors of their own for each truth. `ppr` takes none,
#   and is left out.
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
# like any constraint. A member has its target by its index, in whatever batch it is.
