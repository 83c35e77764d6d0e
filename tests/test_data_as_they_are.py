"""Normal data that are not standardised, through the default, against their exact conditionals."""

import re
import warnings

import pytest
import torch

import feasibly
from feasibly.checks.coverage import centring, channels, misfits
from feasibly.constraints import Mask
from feasibly.denoisers import Adapter
from feasibly.errors import CalibrationWarning, DenoiserError
from feasibly.network import Network
from feasibly.schedules import EDM, VP
from feasibly.wrappers import Chunked

MEMBERS = 256


def alike(n, rho=0.6):
    i = torch.arange(n, dtype=torch.float64)
    return rho ** (i[:, None] - i).abs()


class Exact:
    """E[x_0 | x_0 + sigma noise] of normal data, called as (x, sigma)."""

    def __init__(self, mu, cov):
        self.mu, (self.values, self.vectors) = mu.double(), torch.linalg.eigh(cov.double())

    def __call__(self, x, sigma, shift=None):
        mu = self.mu if shift is None else self.mu + shift.double()
        values = self.values.clamp_min(0)
        gain = values / (values + sigma.double()[:, None] ** 2)
        z = (x.double().flatten(1) - mu) @ self.vectors
        return (mu + (z * gain) @ self.vectors.T).reshape(x.shape).to(x)


def noise_of(net):
    """The same as a prediction of the noise, under VP."""
    schedule = VP()

    def eps(x, t):
        alpha, sigma = (v.double().reshape(-1, *(1,) * (x.ndim - 1)) for v in schedule(t.double()))
        x_0 = net(x.double() / alpha, (sigma / alpha).flatten())
        return ((x.double() - alpha * x_0) / sigma).to(x)

    return eps


def draw(mu, cov, shape, n=512):
    values, vectors = torch.linalg.eigh(cov)
    z = torch.randn(n, len(mu), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (mu + (z * values.clamp_min(0).sqrt()) @ vectors.T).reshape(n, *shape).float()


def check_against(x, mu, cov, seen):
    """Means are within 0.3 standard deviations and spreads within a fifth. Of 256 members, an
    element is outside by a chance of 1e-5."""
    x = x.double().flatten(1)
    rest = [i for i in range(len(mu)) if i not in seen]
    A = torch.eye(len(mu), dtype=torch.float64)[seen]
    gain = cov @ A.T @ torch.linalg.inv(A @ cov @ A.T)
    mu, cov = mu + gain @ (x[0, seen] - mu[seen]), cov - gain @ A @ cov
    std = cov.diagonal()[rest].sqrt()
    scale = (len(x) / MEMBERS) ** -0.5
    assert ((x.mean(dim=0) - mu)[rest] / std).abs().max() < 0.3 * scale
    assert (x.std(dim=0)[rest] / std - 1).abs().max() < 0.2 * scale


FAR = torch.full((3,), 300.0, dtype=torch.float64), 100 * alike(3, 0.3)


@pytest.mark.parametrize("known", [(), ("data",), ("mean", "scale")])
def test_a_mean_far_from_zero_does_not_stay_in_the_samples(known):
    """300 +- 10 with noise up to 80: begun at zero, means are off by half a deviation."""
    given = {"data": draw(*FAR, (3,)), "mean": 300.0, "scale": [10.0, 10.0, 10.0]}
    denoiser = feasibly.wrap(Exact(*FAR), "edm", **{name: given[name] for name in known})
    law = feasibly.Linear(torch.eye(3)[:1], [305.0], tolerance=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        result = feasibly.sample(denoiser, law, MEMBERS, shape=(3,))
    check_against(result.samples, *FAR, [0])
    free = feasibly.sample(denoiser, None, MEMBERS, shape=(3,)).samples
    assert (free.mean(dim=0) - 300).abs().max() < 3


@pytest.mark.slow
def test_conditions_may_shift_the_mean():
    """Of members by themselves; half of them are shifted by thirty standard deviations."""
    shift = torch.tensor([0.0, 300.0]).repeat_interleave(128)[:, None]
    net = Exact(torch.zeros(3), FAR[1])
    data = draw(torch.zeros(3).double(), FAR[1], (3,), 256) + shift
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        denoiser = feasibly.wrap(net, "edm", conditions={"shift": shift}, data=data)
    law = feasibly.EachMember(feasibly.Linear(torch.eye(3)[:1], [0.0], tolerance=1e-4), shift + 5)
    for one in (denoiser, Chunked(denoiser, 64)):
        assert Network(one).settles
    x = feasibly.sample(denoiser, law, 256, shape=(3,)).samples - shift
    for half in x.split(128):
        check_against(half, torch.zeros(3).double(), FAR[1], [0])


@pytest.mark.parametrize("seen", [range(16), range(16, 32), [16]])
def test_channels_may_differ_in_scale_by_a_thousand(seen):
    std = torch.tensor([1000.0, 1.0]).double().repeat_interleave(16)
    cov = torch.kron(torch.tensor([[1.0, 0.7], [0.7, 1.0]]).double(), alike(16, 0.8))
    cov, seen = std[:, None] * cov * std, list(seen)
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask.view(-1)[seen] = True
    y = std[seen].float()
    law = Mask(mask, y, tolerance=1e-6 * float(y.max()) ** 2)
    denoiser = feasibly.wrap(Exact(torch.zeros(32), cov), "edm", EDM(0.02, 1e4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        result = feasibly.sample(denoiser, law, MEMBERS, shape=(2, 16))
    check_against(result.samples, torch.zeros(32).double(), cov, seen)


def test_a_channel_below_the_lowest_noise_is_refused_or_warned_of():
    data = torch.randn(256, 2, 8, generator=torch.Generator().manual_seed(0))
    data[:, 1] *= 2e-6
    net = Exact(torch.zeros(16), torch.tensor([1.0, 4e-12]).repeat_interleave(8).diag())
    denoiser = feasibly.wrap(net, "edm")
    with pytest.raises(DenoiserError, match=r"vary by 2\.01e-06 in channel 1"):
        feasibly.wrap(net, "edm", data=data)
    found = feasibly.check(denoiser, data=data)
    assert not found.ok
    assert "vary by 2.01e-06 in channel 1" in str(found)
    law = Mask(torch.ones(2, 8, dtype=torch.bool), 0.0, tolerance=1e-6)
    assert any("in channel 1" in s for s in feasibly.plan(denoiser, law, (2, 8)).remarks)


@pytest.mark.slow
def test_a_small_channel_does_not_hide_behind_a_large_one():
    """The network leaves 0.02 in a channel of 0.01, beside one of 1."""
    std = torch.tensor([1.0, 0.01])
    data = torch.randn(256, 2, 8, generator=torch.Generator().manual_seed(0)) * std[:, None]
    right = Exact(torch.zeros(16), std.square().repeat_interleave(8).diag())
    off = torch.tensor([0.0, 0.02])[:, None]
    feasibly.wrap(right, "edm", data=data)
    with pytest.raises(DenoiserError, match="does not denoise"):
        feasibly.wrap(lambda x, s: right(x, s) + off, "edm", data=data)
    bad = feasibly.wrap(lambda x, s: right(x, s) + off, "edm")
    assert "a channel worse than a guess" in str(feasibly.check(bad, data=data))
    assert feasibly.check(feasibly.wrap(right, "edm"), data=data).ok


def test_rows_of_a_square_field_are_places_and_no_channels():
    """A nearly constant edge of a field is no data of a smaller scale."""
    data = torch.randn(256, 16, 16, generator=torch.Generator().manual_seed(0))
    data[:, 0] *= 1e-3
    assert channels(data).values.shape == (256, 1, 256)
    assert channels(data[:, :2]).values.shape == (256, 2, 16)


def test_runs_begin_with_the_moments_that_are_known():
    class Zero:
        schedule = EDM()
        data_moments = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0])

        def __call__(self, x, t):
            return x

    z = torch.randn(5, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    found = Network(Zero()).begin(z, torch.tensor(1.0))
    mean, std = (v[:, None, None] for v in Zero.data_moments)
    assert torch.allclose(found, mean + (std**2 + 80.0**2).sqrt() * z)


@pytest.mark.parametrize("given", [{"mean": "a"}, {"scale": 0.0}, {"mean": torch.nan}])
def test_moments_that_are_none_are_refused(given):
    with pytest.raises(ValueError, match=r"wrap\("):
        feasibly.wrap(Exact(*FAR), "edm", **given)


CENTRE = torch.eye(15).double() - torch.kron(torch.full((5, 5), 0.2), torch.eye(3)).double()


def centred():
    """Five points around zero; the network's noise is in the subspace, as molecules' is."""
    cov = CENTRE @ torch.kron(alike(5, 0.4), torch.eye(3).double()) @ CENTRE
    eps = noise_of(Exact(torch.zeros(15), cov))
    return cov, lambda x, t: eps(x, t) - eps(x, t).mean(dim=1, keepdim=True)


def test_centred_data_are_found_and_projected_on():
    cov, net = centred()
    mu = torch.zeros(15).double()
    denoiser = feasibly.wrap(net, "eps", VP(), data=draw(mu, cov, (5, 3)))
    assert "subspace" in repr(denoiser)
    law = feasibly.Linear(torch.eye(15)[:1], [1.0], tolerance=1e-6)
    x = feasibly.sample(denoiser, law, MEMBERS, shape=(5, 3)).samples
    assert x.mean(dim=1).abs().max() < 1e-5
    gain = cov[:, 0] / cov[0, 0]
    std = (cov - gain[:, None] * cov[0]).diagonal().clamp_min(1e-9).sqrt()
    rest = [i for i in range(15) if i % 3 or i]
    x = x.double().flatten(1)
    assert ((x.mean(dim=0) - gain)[rest] / std[rest]).abs().max() < 0.3
    assert (x.std(dim=0)[rest] / std[rest] - 1).abs().max() < 0.2


def test_what_is_not_denoised_is_named():
    _, net = centred()
    law = feasibly.Linear(torch.eye(15)[:1], [1.0], tolerance=1e-6)
    (said, *_) = feasibly.plan(feasibly.wrap(net, "eps", VP()), law, (5, 3)).remarks
    assert "the mean over axis 1" in said
    assert "project=lambda x: x - x.mean(1, keepdim=True)" in said


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_padding_is_projected_on(value):
    mask = torch.ones(6, 2)
    mask[4:] = 0
    kept = mask.flatten().double()
    cov = kept[:, None] * torch.kron(alike(6, 0.5), torch.eye(2).double()) * kept
    mu = value * (1 - kept)
    eps = noise_of(Exact(mu, cov))
    data = draw(mu, cov, (6, 2))

    def net(x, t):
        return mask * eps(x, t)

    with pytest.raises(DenoiserError, match=r"4 of 12 elements .* padding"):
        feasibly.wrap(net, "eps", VP(), data=data)
    denoiser = feasibly.wrap(
        net, "eps", VP(), data=data, project=lambda x: mask * x + value * (1 - mask)
    )
    law = feasibly.Linear(torch.eye(12)[:1], [0.5], tolerance=1e-6)
    x = feasibly.sample(denoiser, law, MEMBERS, shape=(6, 2)).samples
    assert torch.equal(x[:, 4:], torch.full_like(x[:, 4:], value))
    check_against(x[:, :4], mu[:8], cov[:8, :8], [0])


@pytest.mark.parametrize(
    ("project", "said"),
    [
        (lambda x: 2 * x, "not an orthogonal projection"),
        (lambda x: x - x[:, :1], "not an orthogonal projection"),
        (lambda x: x - x.mean(1, keepdim=True), "changes the data"),
        (lambda x: x.mean(1), "failed|not an orthogonal"),
    ],
)
def test_projections_that_are_none_are_refused(project, said):
    data = torch.randn(64, 5, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(DenoiserError, match=said):
        feasibly.wrap(Exact(torch.zeros(15), torch.eye(15)), "edm", data=data, project=project)


def test_data_are_centred_by_rounding_and_not_by_chance():
    x = torch.randn(64, 4, 6, generator=torch.Generator().manual_seed(0))
    assert centring(x) is None
    assert centring(x - x.mean(dim=0)) is None  # over samples, which says nothing of one
    assert centring((x - x.mean(1, keepdim=True))[:1, :, :2]) is None  # two means may be zero
    for data, dims in (
        (x - x.mean(1, keepdim=True), ((1,),)),
        (x - x.mean(2, keepdim=True), ((2,),)),
        (x - x.mean((1, 2), keepdim=True), ((1, 2),)),
    ):
        found = centring(data)
        assert found is not None
        assert found.dims == dims
        assert torch.allclose(found(data), data, atol=1e-6)


@pytest.mark.parametrize(
    ("std", "mean", "ends", "said"),
    [
        ((1.0, 1.0), (0.0, 0.0), (0.002, 80.0), []),
        ((1.0, 0.0), (0.0, 7.0), (0.002, 80.0), []),  # a constant has no spread to resolve
        ((1.0, 0.005), (0.0, 0.0), (0.002, 80.0), ["down to 0.002, but data vary by 0.005"]),
        ((30.0, 1.0), (0.0, 0.0), (0.002, 80.0), ["up to 80, but data vary by 30.* in channel 0"]),
        ((1.0, 10.0), (0.0, 300.0), (0.002, 80.0), ["mean of channel 1 is 300"]),
        ((1.0, 1.0), (0.0, 300.0), (0.002, 1000.0), []),
    ],
)
def test_noise_levels_are_compared_with_each_channel(std, mean, ends, said):
    x = torch.randn(64, 2, 16, generator=torch.Generator().manual_seed(0))
    x = torch.tensor(mean)[:, None] + torch.tensor(std)[:, None] * x / x.std(dim=0)
    found = list(misfits(ends, x))
    assert len(found) == len(said)
    for one, text in zip(found, said, strict=True):
        assert re.search(text, one.sentence), one.sentence
    moments = x.mean(dim=0), x.std()
    assert not [one for one in misfits(ends, x, moments) if one.of_mean]


def test_an_adapter_projects_states_and_estimates():
    """P(x) = c + P_0 x, with the state as alpha c + P_0 x."""
    mask, schedule = torch.tensor([1.0, 0.0]), VP()
    adapter = Adapter(lambda x, t: x + 1, schedule, "x0")
    adapter.project = lambda x: mask * x - (1 - mask)
    t = torch.tensor(0.3, dtype=torch.float64)
    alpha, _ = schedule(t)
    x_t = torch.tensor([[2.0, 5.0]])
    assert torch.allclose(adapter.inside(x_t, alpha), torch.tensor([[2.0, -float(alpha)]]))
    assert torch.equal(adapter(x_t, t).mean, torch.tensor([[3.0, -1.0]]))


def test_moments_of_another_shape_are_refused():
    denoiser = feasibly.wrap(Exact(*FAR), "edm", mean=[1.0, 2.0])
    with pytest.raises(DenoiserError, match=r"shape \(2,\), but a sample has shape \(3,\)"):
        feasibly.sample(denoiser, None, 2, shape=(3,))
