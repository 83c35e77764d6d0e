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
# # Extending feasibly
#
# How do you add your own constraint, method or experiment? Each is one class or one object. This
# page writes one of each and runs them, and the last section says where the files go.
#
# To run this page elsewhere, put {download}`small.py` next to it.

# %%
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from small import short
from torch import Tensor

import feasibly
from feasibly import Constraint, Method, priors
from feasibly.minimizers import GaussNewton, Minimizer
from feasibly.samplers.base import Randn, Step
from feasibly.samplers.projection import project

sys.path.insert(0, str(Path(feasibly.__file__).parents[2]))  # for the experiments

# %% [markdown]
# ## A constraint
#
# Write `residual`, a function from (B, *) to (B, m), and accept a tolerance. Nothing else is
# required, but two additions help. Some methods use a `projection` in closed form, which the line
# `linear = True` provides for an affine residual. The property `equalities` is the equality part
# of the constraint: all of it by default, and None for an inequality.


# %%
class Correlation(Constraint):
    r"""The constraint that a sample has a known correlation with a template.

    Arguments:
        template: The template, with the shape of a sample.
        y: The correlation, between -1 and 1.
        tolerance: The largest squared error of the correlation.
    """

    def __init__(self, template: Tensor, y: float, tolerance: float) -> None:
        super().__init__(tolerance)
        self.template, self.y = template, y

    def residual(self, x: Tensor) -> Tensor:
        u = x.flatten(start_dim=1)
        v = self.template.to(x).flatten()
        # the small constant keeps the gradient finite at the origin
        length = (u.square().sum(dim=1) + 1e-12).sqrt() * v.norm()
        return ((u @ v) / length - self.y)[:, None]


constraint = Correlation(torch.tensor([1.0, 1.0]), 0.8, tolerance=1e-8)
denoiser = priors.load("checkerboard")
result = feasibly.sample(denoiser, constraint, 64, shape=(2,), attempts=9)
print(f"{int(result.feasible.sum())} of 64 feasible")

# %% [markdown]
# Write two tests for every constraint: the residual is zero for a feasible sample, and its
# gradient agrees with finite differences. The second is one line:

# %%
x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
print(torch.autograd.gradcheck(constraint.residual, x))

# %% [markdown]
# ## A method
#
# Write a frozen dataclass with a `step`, which moves states from time t to time s, and returns
# them with the clean estimates from which they were made. In it, call `predict` and `renoise` as
# you need them. The run adds everything else: the loop, seeds, attempts, batches, counts and error
# messages. The class attributes describe the method in the [table of methods](../methods.md).


# %%
@dataclass(frozen=True)
class ProjectAndRenoise(Method):
    r"""Projects the clean estimate, and renoises it.

    .. math:: x_s \sim p(x_s \mid x_0 = \Pi(d_\theta(x_t)))

    Arguments:
        minimize: The minimizer of the projection, which does not evaluate the network.
        options: See :class:`Method`.
    """

    space = "x_0"
    renoises = True

    minimize: Minimizer = GaussNewton(4)
    output: str = "projected"

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        x_0 = project(self.constraint, self.denoiser(x_t, t), self.minimize, self.stop)
        return Step(self.renoise(x_0, s, randn), x_0)


method = ProjectAndRenoise()
print(feasibly.sample(denoiser, constraint, 64, shape=(2,), method=method))

# %% [markdown]
# Test it where the answer is known. For a Gaussian prior and a linear constraint the constrained
# distribution is Gaussian, and the spread of the directions that the constraint leaves free should
# be 1.

# %%
gaussian = feasibly.oracles.Gaussian(torch.zeros(8), torch.eye(8), feasibly.schedules.LogLogit())
first = feasibly.Linear(torch.eye(8)[:1], torch.tensor([0.5]), tolerance=1e-8)
methods = {"this": method, "PPR": "ppr", "PDM": "pdm"}
for name, method in methods.items():
    result = feasibly.sample(gaussian, first, short(512, 64), shape=(8,), method=method)
    free = result.samples[:, 1:]
    print(f"{name:>5}: mean {free.mean():+.2f}, spread {free.std():.2f}")

# %% [markdown]
# The new method is biased like PPR, and for the same reason: it takes a point estimate in place of
# a posterior sample.
#
# ## An experiment
#
# An experiment combines two objects. A *study* is a question and the samplers that answer it. A
# *bench* is the problem: its settings, references and scores. Running a study writes one JSON
# record for each setting, from which a table is made. An interrupted run continues where it
# stopped.

# %%
from experiments import records, tables
from experiments.benches.data2d import Data2DBench
from experiments.run import run
from experiments.samplers import default, only, post_hoc
from experiments.studies import Comparison, Study

study = Study(
    name="renoise-or-not",
    question="Does projecting the estimate and renoising it beat projecting once?",
    on={
        "data2d": Comparison(
            {
                "default": default,
                "project and renoise": only(ProjectAndRenoise, steps=short(64, 8)),
                "post-hoc projection": partial(post_hoc, steps=short(64, 8)),
            }
        )
    },
)
bench = Data2DBench(
    "data2d",
    priors=["checkerboard"],
    constraints=range(short(3, 1)),
    members=short(256, 24),
    seed=0,
    pool=short(16384, 1536),
)

records.RESULTS = Path(tempfile.mkdtemp())  # not among the results of the repository
run(study, bench, bench.settings())
means = tables.means(records.read(study.name, "data2d"))
keys = ("label", "feasible", "on_manifold", "joint", "knn")
for row in means:
    print("  ".join(f"{row[k]:.3f}" if k != "label" else f"{row[k]:>34}" for k in keys))

# %% [markdown]
# ## Where it goes
#
# | what | file | then |
# |---|---|---|
# | a constraint | `src/feasibly/constraints/NAME.py` | add it to the table of `tests/contracts/test_constraints.py` |
# | a minimizer | `src/feasibly/minimizers/`, a frozen dataclass with a `search` | export it: the contract tests find it |
# | a method | `src/feasibly/samplers/NAME.py` | add it to `METHODS`, and to the tables of `tests/contracts/test_samplers.py` and `tests/oracles/test_conditionals.py` |
# | a rule of `feasibly.sample` | `src/feasibly/policy.py`, with its threshold and its reason | test `feasibly.plan` |
# | a family of networks | `src/feasibly/models/NAME.py`, a function | add it to `KINDS` in `wrap.py` |
# | a study | `experiments/studies/NAME.py`, with a `STUDY` | add it to the list in `experiments/studies/__init__.py` |
# | a problem | `src/feasibly/problems/NAME.py`, and its bench in `experiments/benches/` | imitate `ks.py` and `observed.py` |
#
# Files in one folder do not import one another, except its `base.py`. To delete a method, you
# therefore delete one file, its test and its rows. `CONTRIBUTING.md` describes the rest.
