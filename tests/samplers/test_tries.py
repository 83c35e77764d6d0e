"""Members whose particles are sampled again, until a bar of a pilot keeps them.

Statistical tests have fixed seeds, and their bars are four standard errors or more: a fresh seed
would miss one in 10,000.
"""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch

import feasibly
from feasibly import ensemble, members
from feasibly.constraints import (
    Composite,
    EachMember,
    Equality,
    Inequality,
    Linear,
    Observation,
)
from feasibly.errors import SamplingError
from feasibly.minimizers import GaussNewton
from feasibly.network import Evaluations, Network
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.randomness import MemberNoise
from feasibly.samplers import Particles, particles, principal
from feasibly.samplers.principal import Principal, given
from feasibly.samplers.slopes import mapped
from feasibly.sampling import inspect
from feasibly.schedules import LogLogit

D = 4
PRIOR = Gaussian(torch.zeros(D).double(), torch.eye(D).double(), LogLogit())
LINE = Linear(torch.eye(D)[:1].double(), torch.full((1,), 0.5).double(), tolerance=1e-8)
CURVE = Equality(lambda x: x[:, :1] + x[:, :1] ** 3 - 0.5, tolerance=1e-8)
pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.CalibrationWarning")
FEW = {"particles": 2, "steps": 12, "branch": 8.0, "level": 0.05}


class Shifted(Gaussian):
    """A prior whose mean is each member's own condition, from member 8 on."""

    def mean(self, x, sigma):
        shift = (members.current().to(x)[:, None] - 8).clamp_min(0)
        return super().mean(x - shift, sigma) + shift


SHIFTED = Shifted(torch.zeros(D).double(), torch.eye(D).double(), LogLogit())


def prepared(sampler, dtype=torch.float64):
    return sampler.prepare(inspect(sampler.denoiser, sampler.constraint, (D,), dtype))


def begin(sampler, n=6, dtype=torch.float64):
    noise = MemberNoise(0, range(n), (D,), dtype=dtype)
    with torch.no_grad(), members.calling(range(n)):
        return sampler.begin(noise)


def test_the_bar_is_a_quantile_of_a_normal_with_the_median_and_the_upper_quartile():
    sampler = Particles(PRIOR, LINE, tries=2, quantile=0.8)
    normal = NormalDist(-3.0, 2.0)
    values = torch.tensor([normal.inv_cdf((k + 0.5) / 401) for k in range(401)]).double()
    assert sampler._bar(values) == pytest.approx(normal.inv_cdf(0.8), abs=0.02)
    odd = torch.cat([values, torch.tensor([1e6, -math.inf, math.nan, math.inf]).double()])
    assert sampler._bar(odd) == pytest.approx(normal.inv_cdf(0.8), abs=0.05), "of the finite ones"
    assert replace(sampler, quantile=0.5)._bar(values) == pytest.approx(-3.0)
    assert replace(sampler, quantile=0.999)._bar(values[:300]) == values[299], (
        "at most the largest"
    )
    assert sampler._bar(values[:1] * math.nan) == math.inf


def tensors(part):
    """All tensors of nested tuples that have members along the second axis."""
    if isinstance(part, torch.Tensor):
        return [part] if part.dim() > 1 else []
    return [t for one in part for t in tensors(one)] if isinstance(part, tuple) else []


@pytest.mark.parametrize("constraint", [LINE, CURVE], ids=["linear", "curved"])
@pytest.mark.parametrize("every", [1, 2])
def test_a_member_above_the_bar_keeps_all_of_its_first_try(constraint, every):
    n, options = 32, {"normal": constraint.linear, "every": every, "compared": 0.4}
    sampler = prepared(Particles(PRIOR, constraint, tries=4, **(FEW | options)))
    noise = [MemberNoise(0, range(n), (D,), dtype=torch.float64) for _ in range(3)]
    way, rows = sampler._times(torch.float64, "cpu"), torch.arange(n)
    assert 0 < way.compared < len(way.steps)
    with torch.no_grad(), members.calling(range(n)):
        first, log_z = sampler._try(noise[0], noise[0], rows, 0, way, 4)
        bar = log_z.median().item()
        some = replace(sampler, pilot=replace(sampler.pilot, log_bar=bar))
        tried, _ = some._tried(noise[1], way)
        none = replace(sampler, pilot=replace(sampler.pilot, log_bar=-1e9))
        alike, _ = none._tried(noise[2], way)
    above = log_z >= bar
    assert n // 2 <= above.sum() < n
    parts = list(zip(tensors(first), tensors(tried), tensors(alike), strict=True))
    assert (tried.slopes is not None) == (every == 2), "what the next step takes is kept too"
    for old, new, same in parts:
        torch.testing.assert_close(new[:, above], old[:, above], rtol=0, atol=1e-9)
        torch.testing.assert_close(same, old, rtol=0, atol=1e-9)
    apart = (tried.x - first.x).abs().amax(dim=(0, 2)) > 1e-6
    assert 0 < apart.sum() <= (~above).sum()


TARGETS = torch.linspace(-1, 1, 80).double().reshape(40, 2)
WEIGHED = {
    "linear": LINE,
    "curved": CURVE,
    "targets": EachMember(Linear(torch.eye(D)[:2].double(), torch.zeros(2), 1e-8), TARGETS),
    "curved targets": EachMember(Equality(lambda x: x[:, :2].sinh(), tolerance=1e-8), TARGETS),
    "14 inequalities": Inequality(
        lambda x: torch.cat([x[:, 1:] - 1, x.sin(), x.square() - 2, x[:, 1:] ** 3], dim=1), 1e-8
    ),
    "some with noise": Composite(
        [CURVE, Observation(lambda x: x[:, 1:].sinh(), torch.zeros(D - 1), noise=0.1)]
    ),
}


@pytest.mark.parametrize("large", [None, 50])
@pytest.mark.parametrize("normal", [False, True])
@pytest.mark.parametrize("name", WEIGHED)
def test_particles_of_all_members_are_weighed_as_one_by_one(monkeypatch, name, normal, large):
    """With gradients, and with the slopes of the step before; in batches that end amid members."""
    if large:
        monkeypatch.setattr(particles, "LARGE", large)
    constraint, sizes = WEIGHED[name], []

    class Watched:
        schedule = SHIFTED.schedule

        def __call__(self, x_t, t):
            sizes.append(len(x_t))
            return SHIFTED(x_t, t)

    sampler = Particles(Watched(), constraint, normal=normal, **FEW)
    noise = MemberNoise(0, range(40), (D,), dtype=torch.float64)
    x, pairs = [noise()[5:] for _ in range(3)], [noise()[5:] for _ in range(4)]
    around, of = [] if constraint.linear else pairs, torch.arange(35).repeat(3)
    before, one_by_one, J = None, [None] * 3, None
    with members.calling(range(5, 40)):
        for t in (torch.tensor(0.6).double(), torch.tensor(0.5).double()):
            each = [sampler.twist(v, t, around, b, J) for v, b in zip(x, one_by_one, strict=True)]
            one = mapped(lambda *part: torch.cat(part), *each)
            sizes.clear()
            whole = sampler.twist(torch.cat(x), t, around, before, J, of=of, most=40)
            assert sizes == [40, 40, 25]
            for a, b in zip(tensors(one), tensors(whole), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(one.log_h, whole.log_h, rtol=1e-9, atol=1e-11)
            one_by_one, before = [twist.slopes for twist in each], whole.slopes
            if (
                constraint.linear
            ):  # each member is given derivatives of its own, so that a wrong row shows
                J = before.J[:35] * torch.linspace(1, 2, 35)[:, None, None].double()


def test_normal_values_of_many_states_are_given_part_by_part(monkeypatch):
    """Each state has a deviation of its own, and the last part is shorter than the others."""
    B, m, size = 7, 2, 6
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, B, m, size, generator=generator, dtype=torch.float64)
    now = Principal(
        noise[0, :, :, 0],
        noise[1],
        noise[2, :, :, 0].square() + 0.1,
        0.1 * torch.eye(m).double().expand(B, m, m),
        torch.eye(m).double().expand(B, m, m),
        torch.zeros(B).double(),
    )
    std = torch.linspace(0.1, 0.5, B).double()[:, None]
    gain, scale = (torch.tensor(v).double() for v in (0.5, 0.7))

    def sampled():
        stream = MemberNoise(0, range(B), (size,), dtype=torch.float64)
        return given(now, noise[3, :, 0], std, gain, scale, lambda x: stream())

    whole = sampled()
    monkeypatch.setattr(principal, "LARGE", 2 * m * size)
    for a, b in zip(sampled(), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_flat_values_are_weighed():
    """Two values have no slope. The square of the smallest slope is zero in double precision."""
    flat = Inequality(
        lambda x: torch.cat([(x[:, :2] - 50).relu() - 1, x[:, 2:3]], dim=1), tolerance=1e-8
    )
    sampler = Particles(PRIOR, flat, **FEW)
    noise = MemberNoise(0, range(6), (D,), dtype=torch.float64)
    told = sampler.twist(noise(), torch.tensor(0.3).double(), [noise() for _ in range(4)])
    assert told.log_h.isfinite().all()
    start = begin(sampler)
    assert start.statistics["members weighed"] == 6
    assert start.x.isfinite().all()


def test_states_of_one_member_are_weighed_under_its_index_alone():
    """One index stands for all states of a batch, as it does in `members.calling`."""
    sampler = Particles(PRIOR, WEIGHED["targets"], **FEW)
    x_t, t = MemberNoise(0, range(5), (D,), dtype=torch.float64)(), torch.tensor(0.5).double()
    with members.calling([3]):
        one = sampler.twist(x_t, t)
    with members.calling([3] * 5):
        each = sampler.twist(x_t, t)
    torch.testing.assert_close(one.log_h, each.log_h, rtol=0, atol=0)
    torch.testing.assert_close(one.move, each.move, rtol=0, atol=0)


def test_no_two_tries_share_noise(monkeypatch):
    """Each try has a stream, as has each of its particles, and each particle below it."""
    asked, again = [], MemberNoise.again
    monkeypatch.setattr(
        MemberNoise, "again", lambda self, rows, k: asked.append(k) or again(self, rows, k)
    )
    sampler = prepared(Particles(PRIOR, CURVE, tries=3, **(FEW | {"level": 0.0})))
    asked.clear()
    begin(replace(sampler, pilot=replace(sampler.pilot, log_bar=1e9)))
    assert len(asked) == 3 * 2 + 2 + 2
    assert len(set(asked)) == len(asked)
    assert min(asked) > 0, "which is the noise that a member begins with"


@pytest.mark.parametrize("constraint", [LINE, CURVE], ids=["linear", "curved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_member_depends_on_the_others_or_on_chunks(constraint, dtype):
    prior = Gaussian(torch.zeros(D).to(dtype), torch.eye(D).to(dtype), LogLogit())
    sampler = Particles(prior, constraint, tries=3, quantile=0.8, **FEW)
    whole = sampler.sample(9, (D,), dtype=dtype).samples
    bar = 1e-4 if dtype == torch.float32 else 1e-9
    for ids, chunk in ((9, 2), ([7, 3], None), ([5], 1)):
        part = sampler.sample(ids, (D,), dtype=dtype, chunk=chunk)
        torch.testing.assert_close(part.samples, whole[part.members], rtol=0, atol=bar)
    assert len(set(whole[:, 1].tolist())) == 9


def test_with_several_tries_narrow_modes_have_their_weights():
    """A mixture of 24 modes under two values, of which three modes share nearly all. In one try
    four particles are off by 0.2 or more; eight tries bring them within 0.1."""
    wrong, right = (weights(tries) for tries in (1, 8))
    assert wrong > 0.2
    assert right < 0.1


def weights(tries):
    """The total variation between the weights of modes and the exact ones."""
    n, generator = 384, torch.Generator().manual_seed(4)
    mu = torch.randn(24, 16, generator=generator).double()
    A = torch.randn(2, 16, generator=generator).double() / 4
    y = A @ (mu[0] + 0.3 * torch.randn(16, generator=generator).double())
    cov = 0.09 * torch.eye(16).double().expand(24, 16, 16)
    prior = GaussianMixture(torch.ones(24).double() / 24, mu, cov, LogLogit())
    law = Linear(A, y, tolerance=1e-8)
    options = {"particles": 4, "branch": 16.0, "weighed": 4.0, "normal": True, "every": 2}
    sampler = Particles(prior, law, tries=tries, quantile=0.9, **options)
    x = sampler.sample(n, (16,), dtype=torch.float64).samples
    gap = y - mu @ A.T
    exact = (-(gap @ torch.linalg.inv(A @ A.T) * gap).sum(dim=1) / 2 / 0.09).softmax(dim=0)
    found = (-torch.cdist(x, mu).square() / 2 / 0.09).softmax(dim=1).mean(dim=0)
    return (found - exact).abs().sum().item() / 2


@pytest.mark.parametrize(
    ("constraint", "options"),
    [
        (LINE, {"normal": True}),
        (CURVE, {"every": 2, "halved": 0.4}),
        (Linear(LINE.A, LINE.y, noise=0.2), {}),
        (Inequality(lambda x: 0.5 - x[:, :1], tolerance=1e-8), {"level": 0.0}),
    ],
    ids=["linear", "curved", "errors", "inequality"],
)
def test_a_member_that_is_kept_at_no_try_takes_the_budget(constraint, options):
    counted = Evaluations()
    last = GaussNewton(steps=1)
    sampler = Particles(
        Network(PRIOR, counted), constraint, tries=3, minimize=last, **(FEW | options)
    )
    sampler = prepared(sampler)
    sampler = replace(sampler, pilot=replace(sampler.pilot, log_bar=1e9))
    before = replace(counted)
    start = begin(sampler, 2)
    assert start.x.isfinite().all()
    most, rest = sampler.budget(1), replace(sampler, steps=1).budget(1)  # the last step's alone
    spent = counted.forward - before.forward, counted.backward - before.backward
    assert spent == (most[0] - rest[0], most[1] - rest[1])


def test_members_with_conditions_of_their_own_are_compared_with_nobody():
    """They have the same samples whoever else is sampled, and their own prior."""
    sampler = Particles(SHIFTED, LINE, tries=6, normal=True, **FEW)
    found = sampler.sample(40, (D,), dtype=torch.float64)
    for ids in (8, [30], [30, 2], [39, 8, 20]):
        part = sampler.sample(ids, (D,), dtype=torch.float64)
        expected = found.samples[part.members]
        torch.testing.assert_close(part.samples, expected, rtol=0, atol=1e-9)
    assert found.feasible.all()
    apart = found.samples[8:, 1:] - torch.arange(32).double()[:, None]
    assert apart.abs().max() < 5
    # a standard error of the mean of 96 normals is 0.1
    assert apart.mean().abs().item() < 0.41
    assert not any("pilot" in warning for warning in found.warnings)


class Shared(Particles):
    """Notes how many members are sampled at each try."""

    sizes = []  # noqa: RUF012

    def _try(self, again, noise, of, number, times, most):
        Shared.sizes.append(len(of))
        return super()._try(again, noise, of, number, times, most)


def own_values(x):
    """A value with a target of each member's own, which the constraint does not say."""
    return x[:, :1] - members.current().to(x)[:, None].clamp_min(7) / 1e9


SAYS = EachMember(
    Equality(lambda x: x[:, :1], tolerance=1e-8), torch.linspace(-1, 1, 12).double()[:, None]
)


@pytest.mark.parametrize(
    ("prior", "constraint", "first"),
    [
        (SHIFTED, LINE, 9),
        (PRIOR, SAYS, 0),
        (PRIOR, Equality(lambda x: 1e-6 * own_values(x * 1e-6), tolerance=1e-30), 8),
    ],
    ids=["conditions", "targets", "unsaid"],
)
def test_members_unlike_the_pilot_take_four_tries(prior, constraint, first):
    """All members that it is like are kept at once: the bar is low."""
    sampler = prepared(Shared(prior, constraint, tries=6, **FEW))
    Shared.sizes.clear()
    begin(replace(sampler, pilot=replace(sampler.pilot, log_bar=-1e300)), 12)
    assert Shared.sizes == [12, *[12 - first] * 3]


def test_targets_of_their_own_take_more_particles_and_one_try():
    each = EachMember(
        Equality(lambda x: x[:, :1] + 0.01 * x[:, :1] ** 2, tolerance=1e-8),
        torch.linspace(4, 1, 6).double()[:, None],
    )
    first = feasibly.plan(PRIOR, each, (D,), dtype=torch.float64).attempts[0]
    assert (first.tries, first.particles) == (1, 12), "a target that is far is one member's"
    given = {"options": {"particles": 5}, "dtype": torch.float64}
    first = feasibly.plan(PRIOR, each, (D,), **given).attempts[0]
    assert (first.tries, first.particles) == (1, 5)
    sampler = Particles(PRIOR, LINE, tries=3, particles=3)
    several = sampler.for_targets()
    assert (several.tries, several.particles) == (1, 12)
    assert replace(sampler, tries=1).for_targets().particles == 3


def test_a_pilot_without_a_finite_likelihood_is_told_of():
    sampler = prepared(Particles(PRIOR, LINE, tries=6, **FEW))
    lost = replace(sampler, pilot=replace(sampler.pilot, log_bar=math.inf))
    start = begin(lost)
    assert start.statistics["members whose pilot failed"] == 6
    (said,) = lost.warnings(start.statistics)
    assert "None of the 8 members of the pilot" in said
    assert "6 members were sampled 4 times each" in said
    assert not list(sampler.warnings(begin(sampler).statistics))


def test_members_are_compared_by_their_likelihood_down_to_a_level():
    """Of normal data and a linear value it is the exact density, if steps are many: all members
    have it, down to any level."""
    settings = {"particles": 8, "steps": 64, "normal": True, "tries": 2}
    exact = -(0.5**2) / 2
    found = []
    for compared in (0.3, 3.0):
        sampler = Particles(PRIOR, LINE, compared=compared, **settings)
        noise = MemberNoise(0, range(4), (D,), dtype=torch.float64)
        times = sampler._times(torch.float64, "cpu")
        with torch.no_grad(), members.calling(range(4)):
            _, log_z = sampler._try(noise, noise, torch.arange(4), 0, times, 4)
        found.append(log_z)
        torch.testing.assert_close(log_z, torch.full((4,), exact).double(), rtol=0, atol=0.3)
    assert (found[0] - found[1]).abs().min() > 1e-9


def test_statistics_are_of_first_tries_and_the_pilot_is_no_member():
    sampler = prepared(Particles(PRIOR, CURVE, tries=4, quantile=0.999, **FEW), torch.float64)
    bars = (-1e300, 1e300)
    low, high = (
        begin(replace(sampler, pilot=replace(sampler.pilot, log_bar=bar)), 8) for bar in bars
    )
    assert low.statistics == high.statistics
    assert not torch.equal(low.x, high.x)
    noise = MemberNoise(0, range(8), (D,), dtype=torch.float64)
    with torch.no_grad(), members.calling(range(8)):
        times = sampler._times(torch.float64, "cpu")
        _, log_z = sampler._try(noise, noise, torch.arange(8), 0, times, 4)
    assert abs(sampler._bar(log_z) - sampler.pilot.log_bar) > 1e-6


class Lost(Gaussian):
    """A denoiser that is not finite at one level, on one side."""

    def mean(self, x, sigma):
        found = super().mean(x, sigma)
        bad = (x[:, 1] > 0) & (0.25 < float(sigma) < 0.4)
        return torch.where(bad[:, None], math.nan, found)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_states_that_are_not_finite_at_one_level_leave_the_bar_finite():
    prior = Lost(torch.zeros(D).double(), torch.eye(D).double(), LogLogit())
    options = FEW | {"particles": 1, "steps": 16}
    sampler = prepared(Particles(prior, LINE, tries=3, **options))
    assert abs(sampler.pilot.log_bar) < 1e3
    result = sampler.sample(8, (D,), dtype=torch.float64)
    assert result.finite.any()


def test_a_pilot_is_sampled_once_and_belongs_to_its_settings():
    sampler = Particles(PRIOR, LINE, tries=3, **FEW)
    with pytest.raises(ValueError, match=r"no pilot for its settings; take `sampler.prepare"):
        begin(sampler)
    ready = prepared(sampler)
    assert prepared(ready) is ready
    assert sampler.pilot is None
    with pytest.raises(ValueError, match="no pilot for its settings"):
        begin(replace(ready, tries=4))
    assert prepared(replace(sampler, tries=1)).pilot is None
    high = replace(sampler, branch=0.2, compared=0.3)
    assert prepared(high).pilot is None, "particles never get to where they would be compared"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tries": 0}, r"tries=...\) takes a whole number of at least 1, got 0"),
        ({"quantile": 0.4}, r"quantile=...\) must be a number from 0.5 to below 1, got 0.4"),
        ({"quantile": 1.0}, r"from 0.5 to below 1, got 1.0"),
        ({"quantile": None}, r"takes a number, got None"),
        ({"compared": -1.0}, r"compared=...\) must be a positive number, got -1.0"),
        ({"tries": 2, "weighed": 0.08}, r"compared=0.1\) compares members before"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        Particles(PRIOR, LINE, **options)


class Broken(Gaussian):
    """A network that fails at low noise."""

    def mean(self, x, sigma):
        if sigma < 0.3:
            raise IndexError("no such level")
        return super().mean(x, sigma)


def test_a_network_that_fails_in_a_pilot_is_named():
    prior = Broken(torch.zeros(D).double(), torch.eye(D).double(), LogLogit())
    with pytest.raises(SamplingError, match=r"unconditional .* failed \(IndexError: no such"):
        feasibly.sample(prior, LINE, 2, (D,), dtype=torch.float64)
    sampler = Particles(prior, LINE, tries=3, **FEW)
    with pytest.raises(SamplingError, match=r"preparation of a run failed \(IndexError: no such"):
        sampler.sample(2, (D,), dtype=torch.float64)


class Large(Gaussian):
    """A network of which only one state fits into memory, from the pilot on."""

    def mean(self, x, sigma):
        if len(x) > 1 and sigma < 0.3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().mean(x, sigma)


def test_a_pilot_that_does_not_fit_into_memory_is_sampled_one_by_one(tmp_path):
    prior = Large(torch.zeros(D).double(), torch.eye(D).double(), LogLogit())
    found = []
    for number, one in enumerate((prior, PRIOR)):
        sampler = Particles(one, LINE, tries=3, **FEW)
        path = tmp_path / f"{number}.zarr"
        ensemble.run(sampler, path, 3, (D,), dtype=torch.float64, chunk=2 - number)
        found.append(torch.from_numpy(ensemble.Store(path).get(2)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


def test_a_store_counts_the_pilot_and_has_the_members_of_a_run(tmp_path):
    sampler = Particles(PRIOR, LINE, tries=3, **FEW)
    result = sampler.sample(5, (D,), dtype=torch.float64, chunk=2)
    path = tmp_path / "five.zarr"
    ensemble.run(sampler, path, 5, (D,), dtype=torch.float64, chunk=2)
    store = ensemble.Store(path)
    found = torch.stack([torch.from_numpy(store.get(i)) for i in range(5)])
    torch.testing.assert_close(found, result.samples, rtol=0, atol=1e-9)
    forward = sum(record.forward for record in store.all_records())
    assert forward == pytest.approx(result.evaluations.member_forward)
