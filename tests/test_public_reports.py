"""What people reported of samplers like this one, as they would meet it here.

With an exact network and no option set, samples are right, or a refusal or a warning names the
cause. A healthy twin of each case is right without a warning, so nothing is refused wholesale.

`right` allows 6 % of a standard deviation for the sampler, and rejects exact samples by a chance
of 1e-6 a test. Truths are closed forms, or integrals on a grid.
"""

import math
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import feasibly
from feasibly import constraints
from feasibly.errors import DenoiserError, SamplingError
from feasibly.models.tables import AlphaBar
from feasibly.oracles import GaussianMixture
from feasibly.schedules import EDM, VE, VP, Flow

MEMBERS = 512
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
    """Those of a network that is told sigma."""
    return torch.ones_like(sigma), sigma


class Mixture:
    """A mixture of normals: its posterior mean, and its law under linear values."""

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
        """The mean and the covariance, given A x = y with errors."""
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
        spread = torch.einsum("k,ki,kj->ij", w, mu - mean, mu - mean)
        return mean, (w[:, None, None] * cov).sum(0) + spread


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


def correlated(d, rho=0.5):
    return rho ** (torch.arange(d)[:, None] - torch.arange(d)).abs().double()


def two_modes(d=4):
    """Two modes, so that neither is the denoiser affine nor the answer."""
    mu = torch.zeros(2, d)
    mu[:, 1] = torch.tensor([-1.5, 1.0])
    return Mixture(mu, (correlated(d) * 0.5).expand(2, d, d), (0.4, 0.6))


TWO = torch.tensor([[1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]])
VALUES = torch.tensor([0.8, 0.4])


def diag(truth):
    mean, cov = truth
    return mean, cov.diag()


# judging


def attempt(denoiser, constraint, shape, members=MEMBERS, **settings):
    """What sample() came to with no option set: a result or None, and what was said.

    The denoiser or the constraint may be a function that makes it, which may refuse already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            denoiser = denoiser if hasattr(denoiser, "schedule") else denoiser()
            constraint = constraint() if callable(constraint) else constraint
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


def assert_right(found, mean, variance, unit=1.0, quiet=True):
    result, said = found
    assert result is not None, said
    assert result.feasible.all(), said
    assert off(result.samples, mean, variance, unit) <= 0, said
    if quiet:
        assert said == ""


def assert_right_or_said(found, mean, variance, words, unit=1.0):
    """Right, or the words are in the refusal or in the warnings."""
    result, said = found
    if not re.search(words, said):
        assert result is not None, f"refused for another cause: {said}"
        assert_right(found, mean, variance, unit, quiet=False)


# 1. a network that is detached from its input in part


def smooth():
    return Mixture(torch.zeros(1, 16), correlated(16, 0.9)[None])


def many_values():
    """More values than particles are for, and their answer."""
    A = torch.randn(14, 16, generator=torch.Generator().manual_seed(1))
    y = A @ smooth().sample(1)[0]
    return constraints.Linear(A, y, 1e-6), diag(smooth().given(A, y))


def detached_v():
    net = network(smooth(), "v", vp)
    return lambda detach: feasibly.wrap(
        lambda x, t: net(x.detach() if detach else x, t), "v", VP()
    )


def score_by_numpy():
    net = network(smooth(), "score", vp)

    def by_numpy(x, t):
        return torch.from_numpy(net(x.detach(), t).numpy())

    return lambda detach: feasibly.wrap(by_numpy if detach else net, "score", VP())


def velocity_without_grad():
    net = network(smooth(), "velocity", straight)

    def sampled(s, x):
        with torch.no_grad():
            return net(x, s.expand(len(x)))

    return lambda detach: feasibly.wrap(
        sampled if detach else lambda s, x: net(x, s.expand(len(x))), "torchcfm"
    )


def behind_a_skip_connection():
    """A denoiser of the user's own: c_skip x + c_out F(x), with the large part under no_grad."""
    data = smooth()

    def edm(detach):
        def denoise(x, t):
            sigma = EDM()(t)[1]
            skip = 1 / (1 + sigma**2)
            with torch.set_grad_enabled(torch.is_grad_enabled() and not detach):
                rest = data(x, torch.ones(()), sigma.reshape(1, 1)).to(x) - skip * x
            return skip * x + rest

        denoise.schedule = EDM()
        return denoise

    return edm


def half_of_the_channels():
    net = network(smooth(), "eps", vp)

    def some(x, t):
        return net(torch.cat([x[:, :8], x[:, 8:].detach()], dim=1), t)

    return lambda detach: feasibly.wrap(some if detach else net, "eps", VP())


def half_of_the_gradient():
    net = network(smooth(), "eps", vp)

    def halved(x, t):
        return net(0.5 * x + 0.5 * x.detach(), t)

    return lambda detach: feasibly.wrap(halved if detach else net, "eps", VP())


DETACHED = {
    f.__name__: f
    for f in (
        detached_v,
        score_by_numpy,
        velocity_without_grad,
        behind_a_skip_connection,
        half_of_the_channels,
        half_of_the_gradient,
    )
}


@pytest.mark.parametrize("kind", DETACHED)
def test_a_network_detached_from_its_input_is_refused(kind):
    of = DETACHED[kind]()
    constraint, truth = many_values()
    words = r"gradient.*(no_grad|detach)"
    found = attempt(of(True), constraint, shape=(16,), members=1024)
    assert_right_or_said(found, *truth, words)


@pytest.mark.parametrize("kind", DETACHED)
def test_the_same_network_with_its_gradient_is_right(kind):
    of = DETACHED[kind]()
    constraint, truth = many_values()
    assert_right(attempt(of(False), constraint, shape=(16,), members=1024), *truth)


@pytest.mark.parametrize("kind", DETACHED)
def test_a_detached_network_is_found_on_data(kind):
    of, data = DETACHED[kind](), smooth().sample(256)
    feasibly.self_test(of(False), data)
    with pytest.raises(DenoiserError, match=r"gradient.*(no_grad|detach)"):
        feasibly.self_test(of(True), data)


# 2. a residual that is flat where samples are


def sensors():
    """Sensors that saturate, by name, and the value that is observed."""
    return {
        "clamp": (lambda x: x.clamp(max=1.0), 1.0),
        "relu": (F.relu, 0.05),
        "hardtanh": (lambda x: F.hardtanh(2 * x), 1.0),
        "where": (lambda x: torch.where(x > 0.5, 0.5 + 0 * x, x), 0.45),
        "tanh": (lambda x: torch.tanh(2 * x), 0.95),
        "softplus": (lambda x: F.softplus(3 * x) / 3, 0.05),
        "leaky": (lambda x: F.leaky_relu(x, 0.3), -0.1),
    }


SMOOTH = ("tanh", "softplus", "leaky")


def on_a_grid(log_weight, low=-8.0, high=8.0):
    """The mean and the variance of a number with this log density."""
    u = torch.linspace(low, high, 40001, dtype=torch.float64)
    w = log_weight(u).softmax(0)
    mean = (w * u).sum()
    return mean, (w * (u - mean) ** 2).sum()


def sensed(sensor, y):
    """What sample() comes to, and the truth of the element that is seen."""
    data = Mixture(torch.zeros(1, 2), torch.eye(2)[None])
    eps = feasibly.wrap(network(data, "eps", vp), "eps", VP())
    seen = constraints.Observation(lambda x: sensor(x[:, :1]), torch.tensor([y]), noise=0.1)
    found = attempt(eps, seen, shape=(2,), members=256)
    mean, variance = on_a_grid(lambda u: -(u**2) / 2 - ((sensor(u) - y) / 0.1) ** 2 / 2)
    return found, torch.tensor([mean, 0.0]), torch.tensor([variance, 1.0])


@pytest.mark.parametrize("name", [name for name in sensors() if name not in SMOOTH])
def test_a_saturating_sensor_is_right_or_is_named(name):
    assert_right_or_said(*sensed(*sensors()[name]), r"gradient.*zero|flat|zero gradient")


@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_sensor_is_right(name):
    assert_right(*sensed(*sensors()[name]))


# and one that is detached in part


def normalised(detach):
    """A ratio to the size of the sample, which is held fixed in the gradient."""

    def residual(x):
        size = x.square().mean(dim=1, keepdim=True).sqrt()
        return x[:, :1] / (size.detach() if detach else size) - 0.8

    denoiser = feasibly.wrap(
        network(Mixture(torch.zeros(1, 2), torch.eye(2)[None]), "eps", vp), "eps", VP()
    )
    found = attempt(denoiser, constraints.Equality(residual, 1e-8), shape=(2,))
    # x[0] = c r and x[1] = +-s r; the density of r is that of a normal in the plane
    c = 0.8 / 2**0.5
    second = torch.tensor([c**2, 1 - c**2]).double() * 2
    mean = torch.tensor([c * (math.pi / 2) ** 0.5, 0.0]).double()
    return found, mean, second - mean**2


def test_a_residual_detached_in_part_is_right_or_is_named():
    assert_right_or_said(*normalised(True), r"gradient.*(no_grad|detach)")


def test_the_same_residual_with_its_gradient_is_right():
    assert_right(*normalised(False))


# 3. and 4. data with a mean, and channels of unlike scale

UNITS = {
    "mean 300": ((300.0, 300.0, 300.0), (10.0, 10.0, 10.0), EDM()),
    "mean -40": ((-40.0, -40.0, -40.0), (1.0, 1.0, 1.0), VE(1e-3, 50.0)),
    "mean of one": ((0.0, 150.0, 0.0), (1.0, 2.0, 1.0), EDM()),
    "a small channel": ((0.0, 0.0, 0.0), (1.0, 5e-4, 1.0), EDM()),
    "a small channel, flow": ((0.0, 0.0, 0.0), (1.0, 1.0, 3e-4), Flow()),
    "a large channel": ((0.0, 0.0, 0.0), (1.0, 300.0, 1.0), EDM()),
}
ENDS = r"(?i)noise level|mean|scale"


def in_units(name, schedule=None):
    """Data in units, their exact network, and a constraint on the first channel."""
    mean, std, own = UNITS[name]
    mean, std = torch.tensor(mean).double(), torch.tensor(std).double()
    cov = std[:, None] * correlated(3, 0.6) * std
    data = Mixture(mean[None], cov[None])
    schedule = schedule or own
    flow = isinstance(schedule, Flow)
    net = network(data, "velocity" if flow else "eps", straight if flow else unit)
    A = torch.tensor([[1.0, 0.0, 0.0]]).double() / std  # the first, half a deviation high
    y = A @ mean + 0.5
    time = None if flow else (lambda t: schedule(t)[1])

    def wrap(**options):
        kind = {} if flow else {"time": time}
        return feasibly.wrap(net, "velocity" if flow else "eps", schedule, **kind, **options)

    constraint = constraints.Linear(A.float(), y.float(), 1e-6)
    return data, wrap, constraint, diag(data.given(A, y))


@pytest.mark.parametrize("name", UNITS)
def test_units_that_a_schedule_does_not_reach_are_named(name):
    _, wrap, constraint, truth = in_units(name)
    found = attempt(wrap, constraint, shape=(3,))
    assert_right_or_said(found, *truth, ENDS, torch.tensor(UNITS[name][1]))


@pytest.mark.parametrize("name", UNITS)
def test_units_are_right_or_refused_with_data(name):
    data, wrap, constraint, truth = in_units(name)
    found = attempt(lambda: wrap(data=data.sample(256)), constraint, shape=(3,))
    assert_right_or_said(found, *truth, ENDS, torch.tensor(UNITS[name][1]))


@pytest.mark.parametrize("name", [name for name in UNITS if "flow" not in name])
def test_units_that_the_schedule_reaches_are_right(name):
    _, wrap, constraint, truth = in_units(name, VE(1e-4, 2e3))
    assert_right(attempt(wrap, constraint, shape=(3,)), *truth, torch.tensor(UNITS[name][1]))


def test_a_schedule_whose_top_is_beyond_single_precision_is_right():
    """At a noise of 1e5 the derivative of what predicts the noise is rounding alone."""
    _, wrap, constraint, truth = in_units("mean of one", VE(1e-3, 1e5))
    found = attempt(wrap, constraint, shape=(3,))
    assert_right_or_said(found, *truth, "(?i)precision|float")


# 5. a residual that jumps


def angles(wrapped):
    """Points in the plane near the negative axis, on a ray of a known angle."""
    cov = torch.tensor([[0.1, 0.0], [0.0, 0.2]]).double()
    data = Mixture(torch.tensor([[-1.0, 0.0]]), cov[None])
    eps = feasibly.wrap(network(data, "eps", vp), "eps", VP())
    angle = 3.0

    def residual(x):
        gap = torch.atan2(x[:, 1], x[:, 0]) - angle
        return torch.atan2(gap.sin(), gap.cos()) if wrapped else gap

    found = attempt(eps, constraints.Equality(residual, 1e-8), shape=(2,), members=128)
    # the density along the ray is that of the data over the gradient of the angle, 1 / r
    c, s = math.cos(angle), math.sin(angle)
    mean, variance = on_a_grid(
        lambda r: -((c * r + 1) ** 2) / 0.2 - (s * r) ** 2 / 0.4 + r.clamp_min(1e-300).log(), 0, 6
    )
    ray = torch.tensor([c, s])
    return found, mean * ray, variance * ray**2


def test_an_angle_that_jumps_is_right_or_is_named():
    assert_right_or_said(*angles(False), r"jump|discontinu|wrap")


def test_a_wrapped_angle_is_right():
    assert_right(*angles(True))


def branches():
    """A residual of two pieces, each with a solution: 1 on the right and -1.5 on the left."""
    return lambda x: torch.where(x[:, 0] > 0, x[:, 0] - 1, x[:, 0] + 1.5)


def test_a_residual_of_two_pieces_is_right_or_is_named():
    data = Mixture(torch.zeros(1, 2), torch.eye(2)[None])
    eps = feasibly.wrap(network(data, "eps", vp), "eps", VP())
    found = attempt(eps, constraints.Equality(branches(), 1e-8), shape=(2,))
    w = 1 / (1 + math.exp((1 - 1.5**2) / 2))
    mean = w - 1.5 * (1 - w)
    truth = torch.tensor([mean, 0.0]), torch.tensor([w * (1 - w) * 2.5**2, 1.0])
    assert_right_or_said(found, *truth, r"jump|discontinu")


# 6. zero terminal SNR


@pytest.mark.parametrize("trained", [True, False])
def test_a_flag_of_zero_terminal_snr_that_is_wrong_is_found(trained):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    common = {"prediction_type": "v_prediction", "beta_schedule": "scaled_linear"}
    right, wrong = (
        diffusers.DDIMScheduler(rescale_betas_zero_snr=flag, **common)
        for flag in (trained, not trained)
    )
    table = right.alphas_cumprod.double().clamp_min(1e-12)
    data = Mixture(torch.zeros(1, 16), correlated(16, 0.9)[None])

    class Model(nn.Module):
        def forward(self, x, timestep):
            def path(u):
                alpha_bar = table.log()[u.round().long().clamp(0, 999)].exp()
                return alpha_bar.sqrt(), (1 - alpha_bar).sqrt()

            return (network(data, "v", path)(x, timestep),)

    A, half = torch.eye(16)[::2], data.sample(1)[0, ::2]
    for scheduler in (right, wrong):

        def wrap(scheduler=scheduler):
            return feasibly.wrap(Model(), "diffusers", scheduler, data=data.sample(256))

        found = attempt(wrap, constraints.Linear(A, half, 1e-6), shape=(16,), members=256)
        if scheduler is right:
            assert_right(found, *diag(data.given(A, half)))
        else:
            assert_right_or_said(found, *diag(data.given(A, half)), "(?i)schedule|SNR")


# 7. an ambient autocast


@pytest.mark.parametrize("ambient", ["none", "autocast", "double by default", "inference mode"])
def test_the_surroundings_change_no_feasibility(ambient):
    data = two_modes(8)
    eps = feasibly.wrap(network(data, "eps", vp), "eps", VP())
    A = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    y = torch.tensor([1.0, -0.5, 0.3])

    def matmul(x):
        return x @ A.to(x).T - y.to(x)

    constraint = constraints.Equality(matmul, 1e-8)
    within = {
        "none": torch.autocast("cpu", enabled=False),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "double by default": Doubled(),
        "inference mode": torch.inference_mode(),
    }[ambient]
    with within:
        found = attempt(eps, constraint, shape=(8,), members=256)
    assert_right(found, *diag(data.given(A, y)))
    samples = found[0].samples.float().clone()
    assert (matmul(samples).square().sum(dim=1) <= 1e-8).all()


class Doubled:
    """Within it, new tensors are of double precision."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)


# 8. a mask times noise


@pytest.mark.parametrize("noise", ["one", "each"])
@pytest.mark.parametrize("form", ["masked", "repeated", "Linear"])
def test_rows_that_say_nothing_change_nothing(form, noise):
    data, mask = two_modes(10), torch.zeros(10)
    mask[[1, 4, 7]] = 1.0
    y = mask * torch.tensor([9, 0.8, 9, 9, -0.4, 9, 9, 0.6, 9, 9])
    std = 0.1 if noise == "one" else torch.full((10,), 0.1)
    if form == "repeated":  # the same three sensors, read three times each
        rows = torch.tensor([1, 4, 7] * 3 + [1])
        A, y = torch.eye(10)[rows], y[rows]
    else:
        A = torch.diag(mask)
    constraint = (
        constraints.Linear(A, y, noise=std)
        if form == "Linear"
        else constraints.Observation(lambda x: x @ A.T.to(x), y, noise=std)
    )
    eps = feasibly.wrap(network(data, "eps", vp), "eps", VP())
    found = attempt(eps, constraint, shape=(10,), members=256)
    assert_right(found, *diag(data.given(A, y, 0.1)), quiet=form == "Linear")
    assert not re.search("(?i)denoiser", found[1])


# 9. complex values


def spectra():
    """Constraints on two waves of a signal, as one would write them."""
    seen = torch.fft.rfft(two_modes(8).sample(1)[0].double())[1:3]
    rows = torch.fft.rfft(torch.eye(8).double()).T[1:3]
    return seen, {
        "Linear": lambda: constraints.Linear(rows, seen, 1e-6),
        "Observation": lambda: constraints.Observation(
            lambda x: torch.fft.rfft(x)[:, 1:3], seen, 1e-6
        ),
        "Equality": lambda: constraints.Equality(
            lambda x: torch.fft.rfft(x)[:, 1:3] - seen.to(torch.complex64), 1e-6
        ),
        "noisy": lambda: constraints.Observation(
            lambda x: torch.fft.rfft(x)[:, 1:3], seen, noise=0.05
        ),
        "EachMember": lambda: constraints.EachMember(
            constraints.Equality(lambda x: torch.fft.rfft(x)[:, 1:3], 1e-6),
            seen.expand(MEMBERS, 2),
        ),
    }


@pytest.mark.parametrize("form", spectra()[1])
def test_complex_values_are_met_in_both_parts_or_refused(form):
    data, (seen, forms) = two_modes(8), spectra()
    eps = feasibly.wrap(network(data, "eps", vp), "eps", VP())
    found = attempt(eps, forms[form], shape=(8,))
    rows = torch.view_as_real(torch.fft.rfft(torch.eye(8).double())[:, 1:3]).flatten(1).T
    y = torch.view_as_real(seen).flatten()
    truth = data.given(rows, y, 0.05 if form == "noisy" else 0.0)
    assert_right_or_said(found, *diag(truth), "(?i)complex")


# 10. whole-number time steps


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


@pytest.mark.parametrize("how", ["schedule", "round", "floor"])
def test_a_network_with_a_table_of_steps_is_right_or_is_named(how):
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    table, data = torch.cumprod(1 - betas, 0), two_modes()
    options = {
        "schedule": {},
        "round": {"time": lambda t: (999 * t).round().long()},
        "floor": {"time": lambda t: (999 * t).long()},
    }[how]
    denoiser = feasibly.wrap(Steps(data, table), "eps", AlphaBar(table), **options)
    found = attempt(denoiser, constraints.Linear(TWO, VALUES, 1e-8), shape=(4,))
    truth = diag(data.given(TWO, VALUES))
    if options:
        assert_right(found, *truth)
    else:
        assert_right_or_said(found, *truth, "whole steps")


# 11. and 12. networks that leave a part of the noise in place


def padded(kind):
    """Four numbers and two of padding, which are zero in the data and masked by the network."""
    net, keep = network(two_modes(), kind, vp), torch.tensor([1.0, 1, 1, 1, 0, 0])

    def masked(x, t):
        return F.pad(net(x[:, :4], t), (0, 2)) * keep

    return feasibly.wrap(masked, kind, VP())


def wide(A, d):
    return F.pad(A, (0, d - A.shape[1]))


def test_padding_that_is_not_denoised_is_right_or_is_named():
    constraint = constraints.Linear(wide(TWO, 6), VALUES, 1e-8)
    mean, variance = diag(two_modes().given(TWO, VALUES))
    found = attempt(padded("eps"), constraint, shape=(6,))
    assert_right_or_said(found, F.pad(mean, (0, 2)), F.pad(variance, (0, 2)), r"(?i)padd|mask")


def test_padding_that_is_denoised_is_right():
    constraint = constraints.Linear(wide(TWO, 6), VALUES, 1e-8)
    mean, variance = diag(two_modes().given(TWO, VALUES))
    found = attempt(padded("x0"), constraint, shape=(6,))
    assert_right(found, F.pad(mean, (0, 2)), F.pad(variance, (0, 2)))


def centred(kind):
    """Five numbers of mean zero; the network sees and predicts what has mean zero."""
    C = torch.eye(5).double() - 0.2
    cov = C @ correlated(5, 0.3) @ C
    data = Mixture(torch.zeros(1, 5), (cov + 1e-9 * torch.eye(5))[None])
    net = network(data, kind, vp)

    def balanced(x, t):
        out = net(x - x.mean(1, keepdim=True), t)
        return out - out.mean(1, keepdim=True)

    A, y = torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.0]]), torch.tensor([0.8])
    found = attempt(
        feasibly.wrap(balanced, kind, VP()), constraints.Linear(A, y, 1e-8), shape=(5,)
    )
    return found, *diag(data.given(A, y))


def test_mean_free_noise_is_right_or_is_named():
    assert_right_or_said(*centred("eps"), r"(?i)centred")


def test_a_mean_free_prediction_of_the_sample_is_right():
    assert_right(*centred("x0"))


# 13. inference mode inside of the network; around sample() it is above


def test_a_network_in_inference_mode_is_named():
    net = network(two_modes(), "x0", vp)
    denoiser = feasibly.wrap(torch.inference_mode()(net), "x0", VP())
    result, said = attempt(denoiser, constraints.Linear(TWO, VALUES, 1e-8), shape=(4,))
    assert result is None
    assert "inference_mode" in said


# 14. a random residual


@pytest.mark.parametrize("how", ["dropout", "sensors"])
def test_a_random_residual_is_named(how):
    drop = nn.Dropout(0.5)

    def residual(x):
        if how == "dropout":
            return drop(x.repeat(1, 8)) - 0.5  # of few values two draws may be the same
        return x[:, torch.randperm(4)[:2]] - 0.5

    denoiser = feasibly.wrap(network(two_modes(), "eps", vp), "eps", VP())
    result, said = attempt(denoiser, constraints.Equality(residual, 1e-6), shape=(4,))
    assert result is None
    assert re.search(r"random|from call to call|twice", said)
    assert "other samples" not in said


# 15. trouble during the first samples


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), "memory"),
        (ConnectionError("Remote end closed connection"), "Remote end closed"),
    ],
    ids=["device", "host", "connection"],
)
def test_trouble_during_the_first_samples_is_said(error, words):
    net = network(two_modes(), "eps", vp)

    def small(x, t):
        if len(x) > 16:
            raise error
        return net(x, t)

    denoiser = feasibly.wrap(small, "eps", VP())
    constraint = constraints.Linear(TWO, VALUES, 1e-8)
    # the first samples are taken in smaller batches where memory runs out; the run is not
    with pytest.raises(Exception, match=words) as found:
        feasibly.sample(denoiser, constraint, 64, (4,), seed=0)
    if words == "memory":
        assert "chunk" in str(found.value)
        found = attempt(denoiser, constraint, shape=(4,), chunk=16, members=16)
        assert found[1] == ""
        assert found[0].feasible.all()


# 16. a periodic coordinate


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

    found = attempt(denoiser, constraints.Equality(distance, 1e-8), shape=(2,))
    result, said = found
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
    phase = torch.polar(torch.ones_like(u), 2 * math.pi * u)
    truth = (w * phase).sum()
    x = result.samples[:, 0].double()
    found = torch.polar(torch.ones_like(x), 2 * math.pi * x).mean()
    assert result.feasible.all()
    assert abs(truth - found) <= CHANCE / math.sqrt(MEMBERS) * 0.5 + ALLOWED / 3


# 17. a norm that is not squared


@pytest.mark.slow
def test_a_violation_that_is_a_norm_is_met_or_a_cure_is_named():
    """A norm has a kink where it vanishes, so that a step for its square overshoots."""
    denoiser = feasibly.wrap(network(two_modes(), "eps", vp), "eps", VP())

    def norm(x):
        return (x @ TWO.T - VALUES).norm(dim=1)

    result, said = attempt(denoiser, constraints.Scalar(norm, 1e-4), shape=(4,), members=16)
    assert result is not None, said
    assert result.feasible.all() or re.search("(?i)squar|gets there", said)
    square = constraints.Scalar(lambda x: norm(x).square(), 1e-8)
    result, said = attempt(denoiser, square, shape=(4,), members=16)
    assert result.feasible.all(), said


# 18. a decoder of another library


def test_a_decoder_that_returns_an_object_is_read():
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    denoiser = feasibly.wrap(network(two_modes(), "eps", vp), "eps", VP())
    seen, y = matrix[:2], torch.tensor([0.8, 0.4])
    known = constraints.Linear(torch.eye(6)[:2], y, 1e-8)

    def decode(z):
        return SimpleNamespace(sample=z @ matrix.T)

    found = attempt(denoiser, constraints.Decoded(known, decode), shape=(4,))
    assert_right(found, *diag(two_modes().given(seen, y)))

    wrong = constraints.Decoded(known, lambda z: {"x": z})
    assert "decoder returned dict" in attempt(denoiser, wrong, shape=(4,))[1]


# 19. attention


def attention(d, modes=3, s=0.6):
    """The posterior mean of a mixture of equal round modes is one layer of attention."""
    mu = torch.randn(modes, d, generator=torch.Generator().manual_seed(3)) * 0.8
    data = Mixture(mu, s**2 * torch.eye(d).expand(modes, d, d), (1 / modes,) * modes)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys = nn.Parameter(mu)

        def forward(self, x, time):
            alpha, sigma = (v[:, None].to(x.dtype) for v in vp(time.double()))
            total = (sigma / alpha) ** 2 + s**2
            x = x / alpha
            keys = self.keys.expand(len(x), -1, -1).to(x.dtype)
            keys = torch.cat([keys, -keys.square().sum(2, keepdim=True) / 2], dim=2)
            query = F.pad(x, (0, 1), value=1.0)[:, None] / total[..., None]
            mixed = F.scaled_dot_product_attention(query, keys, keys, scale=1.0)[:, 0, :-1]
            return s**2 / total * x + (1 - s**2 / total) * mixed

    return data, feasibly.wrap(Attention(), "x0", VP())


@pytest.mark.parametrize("rows", [1, 10, 20])
def test_attention_is_right(rows):
    data, denoiser = attention(24)
    A = torch.randn(rows, 24, generator=torch.Generator().manual_seed(4)) / 24**0.5
    y = A @ data.sample(1)[0]
    found = attempt(denoiser, constraints.Linear(A, y, 1e-6), shape=(24,), members=128)
    assert_right(found, *diag(data.given(A, y)), quiet=False)
