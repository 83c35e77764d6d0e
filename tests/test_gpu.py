"""What a user calls, with a denoiser on a GPU: the members and readings are those of the CPU."""

import copy

import pytest
import torch

import feasibly
from feasibly import Bounds, Composite, EachMember, Equality, Inequality, Linear, priors
from feasibly.constraints import Observation
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.policy import Plan
from feasibly.problems.ks import KS
from feasibly.schedules import VP, LogLogit
from tests.helpers import on

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

D = 20
generator = torch.Generator().manual_seed(0)
ROOT = torch.randn(D, D, generator=generator, dtype=torch.float64) / D**0.5
NORMAL = Gaussian(torch.zeros(D), ROOT @ ROOT.T + 0.1 * torch.eye(D), LogLogit())
CLUSTERS = GaussianMixture(
    torch.tensor([0.3, 0.7]),
    torch.stack([torch.full((D,), -0.8), torch.full((D,), 0.6)]),
    torch.stack([torch.eye(D) * 0.3, torch.eye(D) * 0.1]),
    VP(),
)
ROWS = torch.randn(16, D, generator=generator, dtype=torch.float64)
TARGETS = torch.linspace(-0.5, 0.5, 8, dtype=torch.float64)[:, None]
SPHERE = Equality(lambda x: x.square().mean(dim=1, keepdim=True) - 0.5, tolerance=1e-8)
RARE = Inequality(lambda x: 1.5 - x[:, :1], tolerance=1e-8)
PROBLEMS = {
    "no constraint": (CLUSTERS, None),
    "two values": (CLUSTERS, Linear(ROWS[:2], torch.zeros(2).double(), tolerance=1e-10)),
    "two values of normal data": (
        NORMAL,
        Linear(ROWS[:2], torch.ones(2).double(), tolerance=1e-10),
    ),
    "16 values": (NORMAL, Linear(ROWS, torch.ones(16).double(), tolerance=1e-8)),
    "16 values of clusters": (CLUSTERS, Linear(ROWS, torch.ones(16).double(), tolerance=1e-8)),
    "noise": (CLUSTERS, Linear(ROWS[:4], torch.ones(4).double(), noise=0.1)),
    "a curve": (CLUSTERS, SPHERE),
    "a rare inequality": (NORMAL, RARE),
    "bounds": (CLUSTERS, Bounds(-2.0, 2.0, tolerance=1e-8)),
    "both": (CLUSTERS, Composite([SPHERE, RARE])),
    "targets": (CLUSTERS, EachMember(Linear(ROWS[:1], torch.zeros(1), tolerance=1e-10), TARGETS)),
    "a sine": (CLUSTERS, Observation(lambda x: torch.sin(6 * x[:, :3]), torch.zeros(3), 1e-8)),
}


def there(denoiser):
    return copy.deepcopy(denoiser).to("cuda")


@pytest.mark.filterwarnings("ignore::feasibly.errors.CalibrationWarning")
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_default_gives_the_members_of_the_cpu(name):
    denoiser, constraint = PROBLEMS[name]
    settings = {"n": 8, "shape": (D,), "dtype": torch.float64, "batch_size": 5}
    here = feasibly.sample(denoiser, constraint, **settings)
    found = feasibly.sample(there(denoiser), constraint, **settings)
    assert found.samples.is_cuda
    assert found.reason == here.reason
    assert torch.equal(found.feasible.cpu(), here.feasible)
    torch.testing.assert_close(found.samples.cpu(), here.samples, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["two values", "a curve", "bounds"])
def test_in_single_precision_all_members_are_feasible(name):
    denoiser, constraint = PROBLEMS[name]
    constraint = copy.copy(constraint)
    constraint.tolerance = 1e-6
    result = feasibly.sample(there(denoiser), constraint, 32, (D,))
    assert result.feasible.all()


def test_a_network_in_half_precision_gives_feasible_members():
    problem = KS("sine-1", priors.load("ks").to("cuda"))
    constraint = problem.constraint(problem.reference(0))
    denoiser = feasibly.MixedPrecision(problem.denoiser, sigma_min=0.1)
    result = feasibly.sample(
        denoiser, constraint, 2, problem.shape, method=feasibly.TunedPPR(steps=16)
    )
    assert result.samples.is_cuda
    assert result.feasible.all()


class Large(torch.nn.Module):
    """A network of normal data that takes a fifth of the GPU's memory a member."""

    def __init__(self):
        super().__init__()
        self.exact, self.schedule = NORMAL, NORMAL.schedule
        free, total = torch.cuda.mem_get_info()
        if free < 0.9 * total:
            pytest.skip("needs a GPU to itself")
        self.each, self.most = total // 5, 0

    def forward(self, x_t, t):
        torch.empty(len(x_t) * self.each, dtype=torch.uint8, device=x_t.device)
        self.most = max(self.most, len(x_t))
        return self.exact(x_t, t).mean


@pytest.mark.parametrize(("batch_size", "fit"), [("auto", 2), (8, 4)])
def test_as_many_members_are_sampled_at_a_time_as_fit(tmp_path, batch_size, fit):
    """By plan as many as take half of the memory; without one, half as many as take too much."""
    pytest.importorskip("zarr")
    network = there(Large())
    kernel = on(feasibly.PPR(steps=4, repeats=1), network, PROBLEMS["two values"][1], (D,))
    path = tmp_path / "members.zarr"
    settings = {"batch_size": batch_size, "infeasible": "keep"}
    summary = feasibly.ensemble.run(Plan((kernel,)), path, 8, **settings)
    assert summary.counted == 8
    assert network.most == fit


def test_a_check_finds_on_a_gpu_what_it_finds_on_the_cpu():
    denoiser, constraint = PROBLEMS["two values"]
    found, here = (feasibly.check(one, constraint, (D,)) for one in (there(denoiser), denoiser))
    assert found.ok == here.ok
    assert found.reason == here.reason


def test_an_audit_runs_where_the_denoiser_is(monkeypatch):
    monkeypatch.setattr("feasibly.audits.truths.STEPS", 16)
    denoiser, constraint = PROBLEMS["two values of normal data"]
    settings = {"truths": 16, "members": 3, "methods": ["auto", "ppr"], "dtype": torch.float64}
    found, here = (
        feasibly.audit(one, constraint, (D,), **settings) for one in (there(denoiser), denoiser)
    )
    torch.testing.assert_close(
        found["ppr"].members.cpu(), here["ppr"].members, rtol=1e-4, atol=1e-4
    )
