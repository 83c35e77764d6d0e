"""What people reported of samplers like this one, as they would meet it here.

With an exact network and no option set, samples are right, or a refusal or a warning names the
cause. A healthy twin of each fault is right without a warning, so nothing is refused wholesale.

`right` allows 6 % of a standard deviation for the sampler, and rejects exact samples by a chance
of 1e-6 a test. Truths are closed forms, or integrals on a grid.
"""

import math
import re
import warnings
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import feasibly
from feasibly.constraints import (
    Constraint,
    Decoded,
    Equality,
    Linear,
    Observation,
    Scalar,
)
from feasibly.errors import DenoiserError, SamplingError
from feasibly.models.tables import AlphaBar
from feasibly.oracles import GaussianMixture
from feasibly.schedules import EDM, VE, VP, Flow

CHANCE, ALLOWED = 5.6, 0.06
"""Standard errors, beyond which one of 50 comparisons is by a chance of 1e-6; and the standard
deviations that a sampler may be off by besides."""


# exact networks, by formulas of the tests' own


def vp(time):
    """The scales of VP at its own time."""
    alpha = torch.exp(-(time**2) * 19.9 / 4 - time * 0.1 / 2)
    return alpha, (1 - alpha**2).sqrt()


def straight(s):
    """Those of a flow, with data at s = 1."""
    return s, 1 - s


def unit(sigma):
    """Those of a network that is given sigma."""
    return torch.ones_like(sigma), sigma


class Mixture:
    """A mixture of normals: its posterior mean, and its law given linear values."""

    def __init__(self, mu, cov, weights=(1.0,)):
        self.mu, self.cov = (torch.as_tensor(v).double() for v in (mu, cov))
        self.log_w = torch.tensor(weights).double().log()
        self.oracle = GaussianMixture(self.log_w.exp(), self.mu, self.cov, VE())

    def __call__(self, x, alpha, sigma):
        return self.oracle.mean(x.double() / alpha, sigma / alpha)

    def sample(self, n, seed=1):
        generator = torch.Generator().manual_seed(seed)
        k = torch.multinomial(self.log_w.exp(), n, replacement=True, generator=generator)
        z = torch.randn(n, self.mu.shape[1], 1, generator=generator, dtype=torch.float64)
        return (self.mu[k] + (torch.linalg.cholesky(self.cov)[k] @ z)[..., 0]).float()

    def given(self, A, y, noise=0.0):
        """The mean and the variances, given A x = y with errors."""
        A, y = torch.as_tensor(A).double(), torch.as_tensor(y).double()
        S = A @ self.cov @ A.T + noise**2 * torch.eye(len(y)).double()
        gain = self.cov @ A.T @ torch.linalg.pinv(S, hermitian=True)
        gap = (y - self.mu @ A.T)[..., None]
        mu = self.mu + (gain @ gap)[..., 0]
        cov = self.cov - gain @ A @ self.cov
        log_w = self.log_w
        if len(self.log_w) > 1:
            misfit = (gap * torch.linalg.solve(S, gap)).sum((-2, -1))
            log_w = log_w - (misfit + torch.logdet(S)) / 2
        w = log_w.softmax(0)
        mean = w @ mu
        spread = (w[:, None] * (mu - mean).square()).sum(0)
        return mean, w @ cov.diagonal(dim1=1, dim2=2) + spread


def network(data, kind, path):
    """The network (x, time) that an endless training on these data would give."""

    def net(x, time):
        alpha, sigma = path(time.double()[:, None])
        x_0 = data(x.flatten(1), alpha, sigma).reshape(x.shape)
        alpha, sigma = (s.reshape(-1, *(1,) * (x.ndim - 1)) for s in (alpha, sigma))
        noise = (x - alpha * x_0) / sigma
        found = {
            "x0": x_0,
            "eps": noise,
            "v": alpha * noise - sigma * x_0,
            "score": -noise / sigma,
            "velocity": x_0 - noise,  # of the straight path
        }[kind]
        return found.to(x.dtype)

    return net


def wrapped(data, kind="eps"):
    return feasibly.wrap(network(data, kind, vp), kind, VP())


def correlated(d, rho=0.5):
    return rho ** (torch.arange(d)[:, None] - torch.arange(d)).abs().double()


def white(d=2):
    return Mixture(torch.zeros(1, d), torch.eye(d)[None])


def smooth():
    return Mixture(torch.zeros(1, 16), correlated(16, 0.9)[None])


def two_modes(d=4):
    """Two modes, so that neither is the denoiser affine nor the answer."""
    mu = torch.zeros(2, d)
    mu[:, 1] = torch.tensor([-1.5, 1.0])
    return Mixture(mu, (correlated(d) * 0.5).expand(2, d, d), (0.4, 0.6))


TWO = torch.tensor([[1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]])
VALUES = torch.tensor([0.8, 0.4])
KNOWN = Linear(TWO, VALUES, 1e-8)


# judging


@dataclass
class Case:
    """A problem, and what is true of its answer. The denoiser may be a function that makes it."""

    denoiser: Any
    constraint: Constraint
    mean: Tensor
    variance: Tensor
    unit: Tensor | float = 1.0
    members: int = 256
    words: bool = False  # whether what is said counts for nothing


def attempt(denoiser, constraint, shape, members=256, **settings):
    """What sample() came to with no option set: a result or None, and what was said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            denoiser = denoiser if hasattr(denoiser, "schedule") else denoiser()
            result = feasibly.sample(denoiser, constraint, members, shape, seed=0, **settings)
        except (ValueError, SamplingError) as error:  # of which the library's own errors are
            return None, str(error)
    return result, " ".join(result.warnings)


def off(x, mean, variance, unit=1.0):
    """How far means and standard deviations are beyond chance and the allowance, in standard
    deviations; no number above 0 is right. What is fixed may vary by 1 % of the unit."""
    x, mean = x.double().flatten(1), mean.double().flatten()
    std, unit = variance.double().flatten().clamp_min(0).sqrt(), torch.as_tensor(unit).double()
    free = std > 1e-3 * unit
    if ((x - mean).abs() / unit)[:, ~free].gt(0.01).any():
        return math.inf
    z = ((x - mean) / std)[:, free]
    chance = CHANCE / math.sqrt(len(x))
    shift = z.mean(0).abs() - chance
    # the error of a variance, by the normal's fourth moment, or the samples' if it is not large
    fourth = z.sub(z.mean(0)).pow(4).mean(0).clamp(3, 6)
    wide = (z.std(0) - 1).abs() - chance * (fourth - 1).sqrt() / 2
    return torch.cat([shift, wide]).max().item() - ALLOWED


def check(case, words=None):
    """Samples are right and nothing is said; with words, they may be in what is said instead."""
    shape = tuple(case.mean.shape)
    result, said = attempt(case.denoiser, case.constraint, shape, case.members)
    if words is not None and re.search(words, said):
        return
    assert result is not None, said
    assert result.feasible.all(), said
    assert off(result.samples, case.mean, case.variance, case.unit) <= 0, said
    assert said == "" or case.words or words is not None


# a network that is detached from its input in part, and a residual that is


def score_by_numpy(detach):
    net = network(smooth(), "score", vp)

    def by_numpy(x, t):
        return torch.from_numpy(net(x.detach(), t).numpy())

    return feasibly.wrap(by_numpy if detach else net, "score", VP())


def behind_a_skip_connection(detach):
    """A denoiser of the user's own: c_skip x + c_out F(x), with the large part under no_grad."""
    data = smooth()

    def denoise(x, t):
        sigma = EDM()(t)[1]
        skip = 1 / (1 + sigma**2)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not detach):
            rest = data(x, torch.ones(()), sigma.reshape(1, 1)).to(x) - skip * x
        return skip * x + rest

    denoise.schedule = EDM()
    return denoise


def detached(make, detach):
    """More values than particles are for, and their answer."""
    A = torch.randn(14, 16, generator=torch.Generator().manual_seed(1))
    y = A @ smooth().sample(1)[0]
    denoiser = partial(make, detach)
    return Case(denoiser, Linear(A, y, 1e-6), *smooth().given(A, y))


@pytest.mark.parametrize("make", [score_by_numpy, behind_a_skip_connection])
def test_a_detached_network_is_found_on_data(make):
    data = smooth().sample(256)
    feasibly.self_test(make(False), data)
    with pytest.raises(DenoiserError, match=r"gradient.*(no_grad|detach)"):
        feasibly.self_test(make(True), data)


def normalised(detach):
    """A ratio to the size of the sample, which is held fixed in the gradient."""

    def residual(x):
        size = x.square().mean(dim=1, keepdim=True).sqrt()
        return x[:, :1] / (size.detach() if detach else size) - 0.8

    # x[0] = c r and x[1] = +-s r; the density of r is that of a normal in the plane
    c = 0.8 / 2**0.5
    second = torch.tensor([c**2, 1 - c**2]).double() * 2
    mean = torch.tensor([c * (math.pi / 2) ** 0.5, 0.0]).double()
    return Case(wrapped(white()), Equality(residual, 1e-8), mean, second - mean**2)


# a residual that is flat where samples are, and one that jumps


def on_a_grid(log_weight, low=-8.0, high=8.0):
    """The mean and the variance of a number with this log density."""
    u = torch.linspace(low, high, 40001, dtype=torch.float64)
    w = log_weight(u).softmax(0)
    mean = (w * u).sum()
    return mean, (w * (u - mean) ** 2).sum()


def sensed(sensor, y):
    """The first of two elements is seen by a sensor."""
    seen = Observation(lambda x: sensor(x[:, :1]), torch.tensor([y]), noise=0.1)
    mean, variance = on_a_grid(lambda u: -(u**2) / 2 - ((sensor(u) - y) / 0.1) ** 2 / 2)
    return Case(wrapped(white()), seen, torch.tensor([mean, 0.0]), torch.tensor([variance, 1.0]))


def two_sensors(apart):
    """A value and its square are seen by sensors that disagree about so much."""
    v, y = torch.linspace(0, 2, 200_001).double(), VALUES[0].double()
    missed = (v - y).square() + (v.square() - y**2 + apart).square()
    data, best = two_modes(), missed.argmin()

    def residual(x):
        u = x @ TWO[0].to(x)
        return torch.stack([u - y, u.square() - y**2 + apart], dim=1)

    law = Equality(residual, max(1e-8, 1.05 * missed[best].item()))
    return Case(wrapped(data), law, *data.given(TWO[:1], v[best][None]))


def angles(around):
    """Points in the plane near the negative axis, on a ray of a known angle."""
    cov = torch.tensor([[0.1, 0.0], [0.0, 0.2]]).double()
    data = Mixture(torch.tensor([[-1.0, 0.0]]), cov[None])
    angle = 3.0

    def residual(x):
        gap = torch.atan2(x[:, 1], x[:, 0]) - angle
        return torch.atan2(gap.sin(), gap.cos()) if around else gap

    # the density along the ray is that of the data over the gradient of the angle, 1 / r
    c, s = math.cos(angle), math.sin(angle)
    mean, variance = on_a_grid(
        lambda r: -((c * r + 1) ** 2) / 0.2 - (s * r) ** 2 / 0.4 + r.clamp_min(1e-300).log(), 0, 6
    )
    ray = torch.tensor([c, s])
    constraint = Equality(residual, 1e-8)
    return Case(wrapped(data), constraint, mean * ray, variance * ray**2, members=128)


# data with a mean, and channels of unlike scale

UNITS = {
    "mean 300": ((300.0, 300.0, 300.0), (10.0, 10.0, 10.0), EDM()),
    "mean -40": ((-40.0, -40.0, -40.0), (1.0, 1.0, 1.0), VE(1e-3, 50.0)),
    "mean of one": ((0.0, 150.0, 0.0), (1.0, 2.0, 1.0), EDM()),
    "a small channel": ((0.0, 0.0, 0.0), (1.0, 5e-4, 1.0), EDM()),
    "a small channel, flow": ((0.0, 0.0, 0.0), (1.0, 1.0, 3e-4), Flow()),
}
ENDS = r"(?i)noise level|mean|scale"


def in_units(name, known=False, schedule=None):
    """Data in units, their exact network with or without data, and the first channel's value."""
    mean, std, own = UNITS[name]
    mean, std = torch.tensor(mean).double(), torch.tensor(std).double()
    cov = std[:, None] * correlated(3, 0.6) * std
    data = Mixture(mean[None], cov[None])
    schedule = schedule or own
    flow = isinstance(schedule, Flow)
    net = network(data, "velocity" if flow else "eps", straight if flow else unit)
    options = {} if flow else {"time": lambda t: schedule(t)[1]}
    if known:
        options["data"] = data.sample(256)
    denoiser = partial(feasibly.wrap, net, "velocity" if flow else "eps", schedule, **options)
    A = torch.tensor([[1.0, 0.0, 0.0]]).double() / std  # the first, half a deviation high
    y = A @ mean + 0.5
    constraint = Linear(A.float(), y.float(), 1e-6)
    return Case(denoiser, constraint, *data.given(A, y), unit=std)


# a network that looks its time up in a table


class Steps(nn.Module):
    """A network that looks its time up in a table, as nn.Embedding does."""

    def __init__(self, data, table):
        super().__init__()
        self.data = data
        self.scales = nn.Embedding(1000, 1)
        self.scales.weight.data = table[:, None].float()

    def forward(self, x, steps):
        alpha_bar = self.scales(steps).double()[:, 0]
        path = lambda _: (alpha_bar.sqrt()[:, None], (1 - alpha_bar).sqrt()[:, None])  # noqa: E731
        return network(self.data, "eps", path)(x, steps)


def whole_steps(**options):
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    table, data = torch.cumprod(1 - betas, 0), two_modes()
    denoiser = partial(feasibly.wrap, Steps(data, table), "eps", AlphaBar(table), **options)
    return Case(denoiser, KNOWN, *data.given(TWO, VALUES))


# networks that leave a part of the noise in place


def padded(kind):
    """Four numbers and two of padding, which are zero in the data and masked by the network."""
    net, keep = network(two_modes(), kind, vp), torch.tensor([1.0, 1, 1, 1, 0, 0])

    def masked(x, t):
        return F.pad(net(x[:, :4], t), (0, 2)) * keep

    mean, variance = (F.pad(v, (0, 2)) for v in two_modes().given(TWO, VALUES))
    constraint = Linear(F.pad(TWO, (0, 2)), VALUES, 1e-8)
    return Case(feasibly.wrap(masked, kind, VP()), constraint, mean, variance)


# how a constraint is written: masks, complex values, decoders


def uninformative(form):
    """Rows of zeros have any value."""
    data, mask = two_modes(10), torch.zeros(10)
    mask[[1, 4, 7]] = 1.0
    y = mask * torch.tensor([9, 0.8, 9, 9, -0.4, 9, 9, 0.6, 9, 9])
    A = torch.diag(mask)
    if form == "Linear":
        constraint = Linear(A, y, noise=0.1)
    else:
        constraint = Observation(lambda x: mask * x, y, noise=torch.full((10,), 0.1))
    return Case(wrapped(data), constraint, *data.given(A, y, 0.1), words=form != "Linear")


def complex_values(form):
    """Two waves of a signal are known."""
    data = two_modes(8)
    seen = torch.fft.rfft(data.sample(1)[0].double())[1:3]
    rows = torch.fft.rfft(torch.eye(8).double())[:, 1:3]

    def waves(x):
        return torch.fft.rfft(x)[:, 1:3]

    constraint = {
        "Linear": lambda: Linear(rows.T, seen, 1e-6),
        "noisy": lambda: Observation(waves, seen, noise=0.05),
    }[form]()
    A, y = torch.view_as_real(rows).flatten(1).T, torch.view_as_real(seen).flatten()
    return Case(wrapped(data), constraint, *data.given(A, y, 0.05 if form == "noisy" else 0.0))


MATRIX = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def decoded(decode):
    known = Linear(torch.eye(6)[:2], VALUES, 1e-8)
    return Case(
        wrapped(two_modes()), Decoded(known, decode), *two_modes().given(MATRIX[:2], VALUES)
    )


GRADIENT, FLAT, JUMP = (
    r"gradient.*(no_grad|detach)",
    r"gradient.*zero|flat",
    r"jump|discontinu|wrap",
)
FAULTS = {
    "a score by numpy": (partial(detached, score_by_numpy, True), GRADIENT),
    "a skip connection": (partial(detached, behind_a_skip_connection, True), GRADIENT),
    "a detached residual": (partial(normalised, True), GRADIENT),
    "clamp": (partial(sensed, lambda x: x.clamp(max=1.0), 1.0), FLAT),
    "where": (partial(sensed, lambda x: torch.where(x > 0.5, 0.5 + 0 * x, x), 0.45), FLAT),
    "an angle that jumps": (partial(angles, False), JUMP),
    "mean 300": (partial(in_units, "mean 300"), ENDS),
    "mean -40 with data": (partial(in_units, "mean -40", True), ENDS),
    "a small channel": (partial(in_units, "a small channel"), ENDS),
    "a small channel of a flow, with data": (
        partial(in_units, "a small channel, flow", True),
        ENDS,
    ),
    "noise beyond single precision": (
        partial(in_units, "mean of one", schedule=VE(1e-3, 1e5)),
        "(?i)precision|float",
    ),
    "a table of steps": (whole_steps, "whole steps"),
    "padding in noise": (partial(padded, "eps"), "(?i)padd|mask"),
    **{
        f"complex, {form}": (partial(complex_values, form), "(?i)complex")
        for form in ("Linear", "noisy")
    },
}
TWINS = {
    "a score": partial(detached, score_by_numpy, False),
    "a skip connection": partial(detached, behind_a_skip_connection, False),
    "a residual": partial(normalised, False),
    "tanh": partial(sensed, lambda x: torch.tanh(2 * x), 0.95),
    "leaky": partial(sensed, lambda x: F.leaky_relu(x, 0.3), -0.1),
    "an angle": partial(angles, True),
    "sensors that agree": partial(two_sensors, 0.0),
    "sensors that disagree": partial(two_sensors, 0.3),
    **{
        f"{name}, reached": partial(in_units, name, schedule=VE(1e-4, 2e3))
        for name in ("mean of one", "a small channel")
    },
    "rounded steps": partial(whole_steps, time=lambda t: (999 * t).round().long()),
    "padding": partial(padded, "x0"),
    "masked rows": partial(uninformative, "masked"),
    "linear rows": partial(uninformative, "Linear"),
    "a decoder that returns an object": partial(
        decoded, lambda z: SimpleNamespace(sample=z @ MATRIX.T)
    ),
}


LONG = (  # each with another of its kind
    "a small channel of a flow, with data",
    "a small channel, reached",
    "an angle",
    "complex, Linear",
    "leaky",
    "linear rows",
    "masked rows",
    "mean -40 with data",
    "where",
)


def marked(cases):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in cases]


@pytest.mark.parametrize("name", marked(FAULTS))
def test_with_a_fault_samples_are_right_or_the_cause_is_named(name):
    make, words = FAULTS[name]
    check(make(), words)


@pytest.mark.parametrize("name", marked(TWINS))
def test_without_it_samples_are_right_and_nothing_is_said(name):
    check(TWINS[name]())


# what cannot be sampled at all


def drop(x):
    return F.dropout(x.repeat(1, 8)) - 0.5  # of few values two draws may be the same


def shuffled(x):
    return x.repeat(1, 8)[:, torch.randperm(32)] - 0.5


RANDOM = r"random|from call to call|twice"
INFERENCE = torch.inference_mode()(network(two_modes(), "x0", vp))


@pytest.mark.parametrize(
    ("denoiser", "constraint", "words"),
    [
        (wrapped(two_modes()), Equality(drop, 1e-6), RANDOM),
        (wrapped(two_modes()), Equality(shuffled, 1e-6), RANDOM),
        (feasibly.wrap(INFERENCE, "x0", VP()), KNOWN, "inference_mode"),
        (
            wrapped(two_modes()),
            decoded(lambda z: {"x": z}).constraint,
            "must return a tensor.*dict",
        ),
    ],
    ids=["dropout", "random sensors", "inference mode", "a decoder's dict"],
)
def test_what_cannot_be_sampled_is_refused_with_the_cause(denoiser, constraint, words):
    result, said = attempt(denoiser, constraint, (4,), members=4)
    assert result is None
    assert re.search(words, said)


# the surroundings


class Doubled:
    """Within it, new tensors are of double precision."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "surroundings",
    [torch.autocast("cpu", torch.bfloat16), Doubled()],
    ids=["autocast", "double by default"],
)
def test_the_surroundings_change_no_feasibility(surroundings):
    data = two_modes(8)
    A = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    y = torch.tensor([1.0, -0.5, 0.3])

    def matmul(x):
        return x @ A.to(x).T - y.to(x)

    with surroundings:
        result, said = attempt(wrapped(data), Equality(matmul, 1e-8), (8,))
    assert said == ""
    samples = result.samples.float().clone()
    assert off(samples, *data.given(A, y)) <= 0
    assert (matmul(samples).square().sum(dim=1) <= 1e-8).all()


def test_a_periodic_coordinate_is_right():
    """Fractional coordinates: noise is wrapped, so that the score has the period of the cell."""
    mu, tau = torch.tensor([0.1, 0.7]), 0.05
    cells = torch.arange(-40, 41).double()

    def score(x, sigma):
        variance = tau**2 + sigma.double()[:, None, None] ** 2
        gap = x.double()[..., None] % 1 - mu[:, None] - cells
        w = (-(gap**2) / (2 * variance)).softmax(-1)
        return -((w * gap).sum(-1) / variance[..., 0]).to(x.dtype)

    schedule = VE(5e-3, 10.0)
    denoiser = feasibly.wrap(score, "score", schedule, time=lambda t: schedule(t)[1])

    def distance(x):
        return (2 * math.pi * (x[:, 1] - x[:, 0])).cos() + 0.7

    result, said = attempt(denoiser, Equality(distance, 1e-8), (2,))
    if re.search("(?i)period|wrap", said):
        return
    assert said == ""
    u = torch.linspace(0, 1, 401, dtype=torch.float64)[:-1]
    # gaps g with cos(2 pi g) = -0.7, both of which have the same gradient
    g = math.acos(-0.7) / (2 * math.pi)
    parts = []
    for gap in (g, 1 - g):
        first = (u - mu[0] + 0.5) % 1 - 0.5
        second = (u + gap - mu[1] + 0.5) % 1 - 0.5
        parts.append(-(first**2 + second**2) / (2 * tau**2))
    w = torch.stack(parts).flatten().softmax(0).reshape(2, -1).sum(0)
    truth = (w * torch.polar(torch.ones_like(u), 2 * math.pi * u)).sum()
    x = result.samples[:, 0].double()
    found = torch.polar(torch.ones_like(x), 2 * math.pi * x).mean()
    assert result.feasible.all()
    assert abs(truth - found) <= CHANCE / math.sqrt(256) * 0.5 + ALLOWED / 3


@pytest.mark.slow
def test_a_violation_that_is_a_norm_is_met_or_a_cure_is_named():
    """A norm has a kink where it vanishes, so that a step for its square overshoots."""

    def norm(x):
        return (x @ TWO.T - VALUES).norm(dim=1)

    result, said = attempt(wrapped(two_modes()), Scalar(norm, 1e-4), (4,), members=16)
    assert result is not None, said
    assert result.feasible.all() or re.search("(?i)squar|converges with", said)
    square = Scalar(lambda x: norm(x).square(), 1e-8)
    result, said = attempt(wrapped(two_modes()), square, (4,), members=16)
    assert result.feasible.all(), said
