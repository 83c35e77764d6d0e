"""PPR as a solver in PhysicsNeMo's own `sample`."""

import pytest
import torch

import feasibly
from feasibly.adapters.physicsnemo import PPRSolver
from feasibly.errors import DenoiserError, InfeasibleWarning
from feasibly.samplers import TruncatedPPR, TunedPPR

samplers = pytest.importorskip(
    "physicsnemo.diffusion.samplers", reason="PhysicsNeMo is not installed", exc_type=ImportError
)
schedulers = pytest.importorskip("physicsnemo.diffusion.noise_schedulers")
guidance = pytest.importorskip("physicsnemo.diffusion.guidance")

MU = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)
COV = torch.tensor([[1.0, 0.6, 0.2], [0.6, 1.2, -0.1], [0.2, -0.1, 0.5]], dtype=torch.float64)
A, Y = torch.tensor([[1.0, 0.5, -1.0]]).double(), torch.tensor([1.5]).double()
LINEAR = feasibly.Linear(A, Y, 1e-10)


def predictor(scheduler):
    """The exact predictor of a Gaussian, in PhysicsNeMo's form."""

    def x_0(x, t):
        alpha, sigma = (scale(t.double())[:, None] for scale in (scheduler.alpha, scheduler.sigma))
        S = alpha[..., None] ** 2 * COV + sigma[..., None] ** 2 * torch.eye(3)
        z = torch.linalg.solve(S, (x.double() - alpha * MU)[..., None])
        return (MU + alpha * (COV @ z)[..., 0]).to(x)

    return x_0


@pytest.fixture(params=["EDMNoiseScheduler", "VPNoiseScheduler", "VENoiseScheduler"])
def scheduler(request):
    return getattr(schedulers, request.param)()


def denoiser(scheduler):
    return feasibly.wrap(predictor(scheduler), "physicsnemo", scheduler)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_their_sample_returns_feasible_samples(scheduler, dtype):
    """Each mean is within 5 exact standard errors of the conditional's; samples of PPR have less
    spread, so the false-alarm rate is below 1e-6 for each of three."""
    solver = PPRSolver(denoiser(scheduler), LINEAR)
    assert isinstance(solver, samplers.Solver)
    torch.manual_seed(0)
    t_N = scheduler.timesteps(32, dtype=dtype)[0].expand(512)
    x_N = scheduler.init_latents((3,), t_N, dtype=dtype)
    rhs = scheduler.get_denoiser(x0_predictor=predictor(scheduler))
    x = samplers.sample(rhs, x_N, scheduler, num_steps=32, solver=solver)
    assert x.dtype == dtype
    assert not x.requires_grad
    assert LINEAR.is_feasible(x).all()
    K = COV @ A.T / (A @ COV @ A.T)
    mean, var = MU + K @ (Y - A @ MU), (COV - K @ A @ COV).diag()
    assert ((x.double().mean(dim=0) - mean).abs() < 5 * (var / 512).sqrt()).all()


def test_a_step_ends_at_the_schedulers_noise_level(scheduler):
    r"""Renoised, :math:`A x_s \sim \mathcal{N}(\alpha_s y, \sigma_s^2 A A^T)` exactly. Two
    statistics at 5 standard errors: a false-alarm rate below 2e-6."""
    solver = PPRSolver(denoiser(scheduler), LINEAR)
    torch.manual_seed(0)
    times = scheduler.timesteps(16, dtype=torch.float64)
    t, s = (times[k].expand(4096) for k in (9, 10))
    x = solver.step(scheduler.add_noise(MU.expand(4096, 3), t), t, s)
    alpha, sigma = scheduler.alpha(s[:1]), scheduler.sigma(s[:1])
    z = (x @ A.T - alpha * Y) / (sigma * A.norm())
    assert abs(z.mean()) < 5 / 64
    assert abs(z.square().mean() - 1) < 5 * (2 / 4096) ** 0.5


def test_their_own_example():
    """Example 2 of their `sample`, whose predictor is exact for standard normal images; the same
    with times of its own, and within inference mode."""
    scheduler = schedulers.EDMNoiseScheduler()
    t_N = scheduler.timesteps(10)[0].expand(2)
    x_N = scheduler.init_latents((3, 8, 8), t_N)

    def x0_predictor(x, t):
        return x / (1 + t.view(-1, *([1] * (x.ndim - 1))) ** 2)

    rhs = scheduler.get_denoiser(x0_predictor=x0_predictor)
    means = feasibly.Observation(
        lambda x: x.mean(dim=(2, 3)), torch.tensor([0.1, 0.0, -0.1]), 1e-6
    )
    solver = PPRSolver(feasibly.wrap(x0_predictor, "physicsnemo", scheduler), means)
    own = torch.tensor([80.0, 40.0, 20.0, 10.0, 5.0, 0.0])
    for options in ({"num_steps": 10}, {"num_steps": 0, "time_steps": own}):
        x = samplers.sample(rhs, x_N, scheduler, solver=solver, **options)
        assert x.shape == (2, 3, 8, 8)
        assert means.is_feasible(x).all()
    with torch.inference_mode():
        x = samplers.sample(rhs, x_N.clone(), scheduler, num_steps=10, solver=solver)
    assert means.is_feasible(x).all()


def test_rows_have_their_conditions_and_targets():
    scheduler = schedulers.VPNoiseScheduler()
    condition = torch.tensor([[0.0, 0.0, 50.0], [0.0, 0.0, -50.0]])

    def net(x, t, condition):
        return predictor(scheduler)(x - scheduler.alpha(t)[:, None] * condition, t) + condition

    conditional = feasibly.wrap(net, "physicsnemo", scheduler, conditions={"condition": condition})
    targets = torch.tensor([[1.0], [-1.0]])
    each = feasibly.EachMember(feasibly.Equality(lambda x: x[:, :1], 1e-8), targets)
    x_N = scheduler.init_latents((3,), scheduler.timesteps(16)[0].expand(2))
    solver = PPRSolver(conditional, each)
    x = samplers.sample(None, x_N, scheduler, num_steps=16, solver=solver)
    torch.testing.assert_close(x[:, :1], targets, atol=1e-4, rtol=0)
    assert ((x - condition)[:, 2].abs() < 5).all()


def test_what_is_not_feasible_is_warned_of():
    scheduler = schedulers.EDMNoiseScheduler()
    never = feasibly.Observation(lambda x: x.square().sum(dim=1), torch.tensor(-1.0), 1e-6)
    x_N = scheduler.init_latents((3,), scheduler.timesteps(4)[0].expand(2))
    with pytest.warns(InfeasibleWarning, match=r"2 of 2 samples of PPRSolver are not feasible"):
        samplers.sample(
            None, x_N, scheduler, num_steps=4, solver=PPRSolver(denoiser(scheduler), never)
        )


def test_their_guidance_takes_the_residual():
    """Their ModelConsistencyDPSGuidance on our residual: the gradient through the predictor, by
    its closed form."""
    scheduler = schedulers.EDMNoiseScheduler()
    guide = guidance.ModelConsistencyDPSGuidance(
        LINEAR.residual, torch.zeros(1, 1).double(), std_y=0.1
    )
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    t = torch.full((4,), 2.0, dtype=torch.float64)
    x_0 = predictor(scheduler)(x, t)
    J = torch.linalg.solve(COV + 4 * torch.eye(3), COV)  # of the predictor
    expected = -(LINEAR.residual(x_0.detach()) / 0.1**2) @ A @ J.T
    torch.testing.assert_close(guide(x, t, x_0), expected)


def test_wrong_uses_are_refused(scheduler):
    ours = denoiser(scheduler)
    with pytest.raises(DenoiserError, match=r"feasibly\.wrap"):
        PPRSolver(predictor(scheduler), LINEAR)
    for method in (feasibly.Ancestral(), TunedPPR()):
        with pytest.raises(ValueError, match=r"takes PPR\(\.\.\.\)"):
            PPRSolver(ours, LINEAR, method)
    assert PPRSolver(ours, LINEAR, TruncatedPPR()).method == TruncatedPPR()
    x, t = torch.zeros(2, 3), scheduler.timesteps(4)
    with pytest.raises(ValueError, match="Wrap with the scheduler"):
        PPRSolver(ours, LINEAR).step(x, 1e4 * t[0].expand(2), t[1].expand(2))
    with pytest.raises(ValueError, match="the same for all states"):
        PPRSolver(ours, LINEAR).step(x, t[:2], t[1:3])
    noisy = PPRSolver(ours, feasibly.Linear(A, Y, noise=0.1))
    with pytest.raises(ValueError, match="exact constraints"):
        noisy.step(x, t[0].expand(2), t[1].expand(2))
