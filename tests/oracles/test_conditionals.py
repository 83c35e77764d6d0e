"""Every method on a Gaussian prior and a linear constraint, where the answer is known.

*White prior*, N(0, I): the directions that the constraint leaves free are untouched by it, so each
method acts there as a linear recursion, whose variance is computed here step by step. The exact
conditional has the variance of unconditional sampling.

*Correlated prior*: the constraint says something about the free directions. Methods that use the
covariance of the estimate are exact.
"""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from feasibly import samplers
from feasibly.constraints import Linear
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit, Rectified
from tests.helpers import on, sampled

N, D = 2048, 4
STEPS = 16
DIRECTION = torch.tensor([[0.5, -0.5, 0.1, 0.7]], dtype=torch.float64)
PLANE = Linear(DIRECTION, torch.tensor([0.7], dtype=torch.float64), tolerance=1e-6)
FREE = torch.linalg.svd(DIRECTION)[2][1:].T
EXACT = GaussNewton(steps=1, damping=0.0, max_distance=None)  # for a linear constraint
pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")


class Line:
    """One free direction of the white prior: x_t is a linear map of noise, and `own` and
    `shared` are its variance from fresh noise and its coefficient of a noise that is kept."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.own, self.shared = 0.0, 0.0

    def scales(self, t):
        alpha, sigma = (v.item() for v in self.schedule(t))
        return alpha, sigma, alpha / (alpha**2 + sigma**2)  # d(x) = k x

    def map(self, factor, noise, kept=0.0):
        self.own = factor**2 * self.own + noise**2
        self.shared = factor * self.shared + kept

    def predict(self, t, s, eta):
        (a_t, s_t, k), (a_s, s_s, _) = self.scales(t), self.scales(s)
        tau = eta * (1 - (a_t * s_s / (a_s * s_t)) ** 2)
        factor = a_s * k + s_s * math.sqrt(1 - tau) * (1 - a_t * k) / s_t
        self.map(factor, s_s * math.sqrt(tau))

    def renoise(self, t, s, kept=False):
        """Denoises at t and noises to s."""
        _, _, k = self.scales(t)
        a_s, s_s, _ = self.scales(s)
        self.map(a_s * k, 0.0 if kept else s_s, s_s if kept else 0.0)

    def correct(self, t, delta):
        a, sigma, k = self.scales(t)
        self.map(a * k + math.sqrt(1 - delta) * (1 - a * k), math.sqrt(delta) * sigma)

    def langevin(self, t, kappa):
        a, sigma, k = self.scales(t)
        self.map(1 + kappa / 2 * (a * k - 1), math.sqrt(kappa) * sigma)

    def resample(self, t, s, gamma):
        (a_t, s_t, k), (a_s, s_s, _) = self.scales(t), self.scales(s)
        v = gamma * (1 - (a_t * s_s / (a_s * s_t)) ** 2)
        ddim = a_s * k + s_s * (1 - a_t * k) / s_t
        self.map((v * a_s * k + ddim) / (v + 1), s_s * math.sqrt(v / (v + 1)))

    @property
    def variance(self):
        return self.own + self.shared**2


def ancestral(line, t, s):
    line.predict(t, s, 1.0)


def implicit(line, t, s):
    line.predict(t, s, 0.0)


def corrected(line, t, s):
    line.predict(t, s, 1.0)
    line.correct(s, 0.1)


def ppr(line, t, s):
    line.predict(t, s, 1.0)
    line.renoise(s, s)


def calibrated(line, t, s):
    """DDPM's step given a sample of x_0; the last state is projected and renoised, as PPR's is."""
    (a_t, s_t, _), (a_s, s_s, _) = line.scales(t), line.scales(s)
    tau = 1 - (a_t * s_s / (a_s * s_t)) ** 2
    share = a_s - s_s * math.sqrt(1 - tau) * a_t / s_t  # of x_0 in x_s
    line.predict(t, s, 1.0)
    line.own += share**2 * s_t**2 / (a_t**2 + s_t**2)
    if s == 0:
        line.renoise(s, s)


def langevin(line, t, s):
    (a_t, _, _), (a_s, _, _) = line.scales(t), line.scales(s)
    line.map(a_s / a_t, 0.0)
    for _ in range(8):
        line.langevin(s, 0.3)


def langevin_and_renoise(line, t, s):
    (a_t, _, _), (a_s, _, _) = line.scales(t), line.scales(s)
    line.map(a_s / a_t, 0.0)
    for _ in range(4):
        line.langevin(s, 0.3)
        line.renoise(s, s)


def mixed(line, t, s):
    line.renoise(t, t, kept=True)
    line.renoise(t, s, kept=True)


# method, its step on a free direction, and the largest residual's root mean square
WHITE = {
    "PPR": (samplers.PPR(repeats=1, minimize=GaussNewton()), ppr, 1e-3),
    "CalibratedPPR": (samplers.CalibratedPPR(), calibrated, 1e-3),
    "DPS": (samplers.DPS(zeta=0.02), ancestral, 0.5),
    "DPSPC": (samplers.DPSPC(zeta=0.02), corrected, 0.5),
    "MMPS": (samplers.MMPS(), corrected, 1e-3),
    "HDC": (
        samplers.HDC(gamma=1.0, minimize=EXACT),
        lambda x, t, s: x.resample(t, s, 1.0),
        1e-3,
    ),
    "ReSample": (
        samplers.ReSample(zeta=0.02, every=100, minimize=EXACT),
        implicit,
        1e-3,
    ),
    "CPS": (samplers.CPS(minimize=EXACT), implicit, 1e-3),
    "CPS, eta 1": (samplers.CPS(minimize=EXACT, eta=1.0), ancestral, 1e-3),
    "ProximalLangevin": (samplers.ProximalLangevin(corrections=1), corrected, 1e-3),
    "TrustSampling": (samplers.TrustSampling(bound=math.inf, length=0.02), ancestral, 0.2),
    "PDM": (samplers.PDM(repeats=8, kappa=0.3), langevin, 1e-3),
    "PDM, x_0": (
        samplers.PDM(repeats=4, kappa=0.3, where="x_0"),
        langevin_and_renoise,
        1e-3,
    ),
    "CDIM": (samplers.CDIM(), implicit, 0.02),
    "ECI": (samplers.ECI(mixes=2), mixed, 1e-3),
    "ECI, fresh noise": (samplers.ECI(resample=1), lambda x, t, s: x.renoise(t, s), 1e-3),
    "PCFM": (samplers.PCFM(), lambda x, t, s: x.renoise(t, s, kept=True), 1e-3),
    "PostHoc": (samplers.PostHoc(order=1, spacing="time"), ancestral, 1e-3),
}
KEEPS_NOISE = ("ECI", "PCFM")


def test_the_table_has_every_method():
    plain = {samplers.Ancestral, samplers.PredictorCorrector}
    # for other problems than a plane, or tested in tests/samplers; TunedPPR becomes PPR
    plain |= {samplers.TruncatedPPR, samplers.Rejection, samplers.SMC, samplers.TunedPPR}
    assert {type(row[0]) for row in WHITE.values()} == set(samplers.METHODS.values()) - plain


@pytest.mark.parametrize("name", WHITE)
def test_free_directions_follow_their_recursion(name):
    method, step, _ = WHITE[name]
    schedule = Rectified()  # of which neither alpha nor alpha^2 + sigma^2 is one
    white = Gaussian(torch.zeros(D).double(), torch.eye(D).double(), schedule)
    line = Line(schedule)
    times = torch.linspace(1, 0, STEPS + 1, dtype=torch.float64)
    alpha, sigma, _ = line.scales(times[0])
    size = math.sqrt(alpha**2 + sigma**2)
    line.map(0.0, *((0.0, size) if name in KEEPS_NOISE else (size, 0.0)))
    for t, s in pairwise(times):
        step(line, t, s)
    kernel = on(replace(method, steps=STEPS, output="state"), white, PLANE, (D,))
    free = sampled(kernel, N, (D,), dtype=torch.float64).samples @ FREE
    # 6144 numbers: five standard errors are missed once in 1.7 million
    error = line.variance * math.sqrt(2 / free.numel())
    assert free.square().mean().item() == pytest.approx(line.variance, abs=5 * error)
    assert abs(free.mean().item()) < 5 * math.sqrt(line.variance / free.numel())


@pytest.mark.slow
@pytest.mark.parametrize("name", WHITE)
def test_residuals_are_as_small_as_the_method_can(name):
    method, _, largest = WHITE[name]
    white = Gaussian(torch.zeros(D).double(), torch.eye(D).double(), LogLogit())
    # enough steps for those that descend by steps of a fixed length
    kernel = on(replace(method, steps=128 if largest > 1e-3 else STEPS), white, PLANE, (D,))
    x = sampled(kernel, 512, (D,), dtype=torch.float64).samples
    size = PLANE.residual(x).square().mean().sqrt().item()
    assert size < largest
    if largest > 1e-3:  # and no smaller, which is why these are not for hard constraints
        assert size > 1e-3


COVARIANCE = torch.tensor([[1.0, 0.6, 0.2], [0.6, 1.2, 0.3], [0.2, 0.3, 0.8]]).double()
SLANTED = Linear(
    torch.tensor([[1.0, -2.0, 0.5]]).double(), torch.tensor([2.5]).double(), tolerance=1e-6
)


@pytest.mark.slow
@pytest.mark.parametrize("method", [samplers.CalibratedPPR(steps=128), samplers.MMPS(steps=256)])
def test_methods_that_weigh_by_the_covariance_have_the_exact_conditional(method):
    prior = Gaussian(torch.zeros(3).double(), COVARIANCE, LogLogit())
    A, y = SLANTED.A, SLANTED.y
    gain = COVARIANCE @ A.T @ torch.linalg.inv(A @ COVARIANCE @ A.T)
    mean, covariance = gain @ y, COVARIANCE - gain @ A @ COVARIANCE
    free = torch.linalg.svd(A)[2][1:].T
    root = torch.linalg.cholesky(free.T @ covariance @ free)
    x = sampled(on(method, prior, SLANTED), 2048, (3,), dtype=torch.float64).samples
    # white under the conditional; the standard errors are 0.022 of the mean and 0.011 of the
    # ratio: five of them on either side, for another seed
    z = torch.linalg.solve_triangular(root, ((x - mean) @ free).T, upper=False)
    assert z.mean(dim=1).norm().item() < 0.11
    assert z.std(dim=1).square().mean().sqrt().item() == pytest.approx(1, rel=0.055)
