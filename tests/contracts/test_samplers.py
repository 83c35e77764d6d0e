"""What every sampler promises, whatever its method."""

import copy
import math

import pytest
import torch

import feasibly
from experiments.studies.ablation import CleanSpace, CleanSpaceNoRenoise, NoRenoise
from feasibly import samplers
from feasibly.constraints import GaussianRandomField, LevelSet, Linear
from feasibly.minimizers import LBFGS, GaussNewton
from feasibly.schedules import VP, Cosine, LogLogit, Rectified

CONSTRAINT = LevelSet(GaussianRandomField(seed=3))
LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)
PAPER = {"repeats": 2, "minimize": LBFGS(steps=4), "sigma_max": math.inf, "retries": 0}


def maker(method, **options):
    def make(denoiser, **more):
        return method(denoiser, CONSTRAINT, **({"steps": 12} | options | more))

    return make


def linear(method, **options):
    """A method for linear constraints, or closed forms: the line that the residual's zeros
    cross, instead of the zeros."""

    def make(denoiser, **more):
        return method(denoiser, LINE, **({"steps": 12} | options | more))

    return make


MAKE = {
    "PPR": maker(samplers.PPR),
    "PPR, paper": maker(samplers.PPR, **PAPER),
    "CalibratedPPR": maker(samplers.CalibratedPPR),
    "CalibratedPPR, tries": maker(samplers.CalibratedPPR, sigma_max=0.3, tries=3),
    "PostHoc": maker(samplers.PostHoc),
    "Ancestral": maker(samplers.Ancestral),
    "PredictorCorrector": maker(samplers.PredictorCorrector),
    "DPS": maker(samplers.DPS, zeta=0.1),
    "DPSPC": maker(samplers.DPSPC, zeta=0.1),
    "MMPS": maker(samplers.MMPS),
    "MMPS, cg": maker(samplers.MMPS, solver="cg", corrections=0),
    "HDC": maker(samplers.HDC),
    "ReSample": maker(samplers.ReSample, zeta=0.02, every=2, travel=2, minimize=LBFGS(steps=4)),
    "CPS": maker(samplers.CPS),
    "ProximalLangevin": maker(samplers.ProximalLangevin, corrections=1),
    "ProximalLangevin, near": maker(samplers.ProximalLangevin, lmbda=1e4),
    "TrustSampling": maker(samplers.TrustSampling, bound=2.0),
    "PDM": maker(samplers.PDM, repeats=3),
    "PDM, x_0": maker(samplers.PDM, repeats=3, where="x_0"),
    "CDIM": linear(samplers.CDIM),
    "ECI": linear(samplers.ECI, mixes=2),
    "PCFM": maker(samplers.PCFM),
    "PCFM, relaxed": maker(samplers.PCFM, penalty=0.1),
    "x_0^M": maker(CleanSpace, **PAPER),
    "x_t^0": maker(NoRenoise, **(PAPER | {"repeats": 1})),
    "x_0^0": maker(CleanSpaceNoRenoise, **(PAPER | {"repeats": 1})),
}
ABLATION_NAMES = ("x_0^M", "x_t^0", "x_0^0")
ABLATIONS = {CleanSpace, NoRenoise, CleanSpaceNoRenoise}
# single members, and the ablations, may be infeasible: that is not what is tested here
pytestmark = [
    pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning"),
    pytest.mark.filterwarnings("ignore::feasibly.errors.CalibrationWarning"),
]
every_sampler = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def test_no_sampler_is_left_out(checkerboard):
    public = set(samplers.METHODS.values())
    assert {method.__name__ for method in public} | {"Sampler", "METHODS"} == set(samplers.__all__)
    assert {type(make(checkerboard)) for make in MAKE.values()} == public | ABLATIONS


@every_sampler
@pytest.mark.parametrize("output", ["clean", "denoise"])
def test_no_run_exceeds_its_budget(make, output, checkerboard):
    sampler = make(checkerboard, output=output)
    calls = sampler.sample(8, (2,), dtype=torch.float64).evaluations
    assert calls.forward <= sampler.budget()[0]
    assert calls.backward <= sampler.budget()[1]


@every_sampler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_result_accounts_for_every_member(make, checkerboard, dtype):
    sampler = make(checkerboard)
    result = sampler.sample(9, (2,), seed=1, dtype=dtype)
    assert result.samples.shape == (9, 2)
    assert result.samples.dtype == dtype
    assert result.samples.isfinite().all()
    assert result.members == list(range(9))
    assert result.trace[-1].forward <= result.evaluations.forward
    assert [s.step for s in result.trace if s.attempt == 0] == list(range(1, sampler.steps + 1))


@every_sampler
def test_violation_is_that_of_the_returned_samples(make, checkerboard):
    sampler = make(checkerboard)
    result = sampler.sample(16, (2,), dtype=torch.float64)
    c = sampler.constraint.violation(result.samples)
    torch.testing.assert_close(result.violation, c)
    assert torch.equal(result.feasible, c <= sampler.constraint.tolerance)


@every_sampler
def test_a_member_is_the_same_alone_as_in_a_batch(make, checkerboard):
    # double precision: rounding differs between batch sizes, and projections amplify it
    sampler = make(checkerboard)
    batch = sampler.sample(12, (2,), seed=5, dtype=torch.float64)
    for member in (0, 4, 11):
        alone = make(checkerboard).sample([member], (2,), seed=5, dtype=torch.float64)
        torch.testing.assert_close(alone.samples[0], batch.samples[member], rtol=1e-7, atol=1e-7)


@every_sampler
def test_chunks_do_not_change_members(make, checkerboard):
    whole = make(checkerboard).sample(10, (2,), seed=2, dtype=torch.float64)
    parts = make(checkerboard).sample(10, (2,), seed=2, dtype=torch.float64, chunk=4)
    torch.testing.assert_close(whole.samples, parts.samples, rtol=1e-7, atol=1e-7)
    assert parts.members == whole.members
    assert whole.calls.member_forward == parts.calls.member_forward


@every_sampler
def test_equal_seeds_give_equal_members_and_others_do_not(make, checkerboard):
    first = make(checkerboard).sample(4, (2,), seed=0).samples
    assert torch.equal(first, make(checkerboard).sample(4, (2,), seed=0).samples)
    assert not torch.isclose(first, make(checkerboard).sample(4, (2,), seed=1).samples).any()


@every_sampler
@pytest.mark.parametrize("output", ["state", "denoised", "projected"])
def test_readouts_differ_by_the_last_noise_only(make, output, checkerboard):
    clean = make(checkerboard, output="projected", retries=0)
    other = make(checkerboard, output=output, retries=0)
    a = clean.sample(16, (2,), dtype=torch.float64).samples
    b = other.sample(16, (2,), dtype=torch.float64).samples
    # the last step changes an estimate by its noise levels' size at most
    sigma = clean.noise_level(torch.tensor(1 / clean.steps))
    if not isinstance(clean, PUSHED):
        assert (a - b).norm(dim=1).max() < 20 * sigma
    # without renoising the state is x_t^*, whose denoised mean is the clean estimate; a state
    # that is itself projected is its own
    same = ["clean"]
    same += ["denoise"] * (type(clean) is NoRenoise) + ["state"] * pinned(clean)
    assert (output in same) == torch.equal(a, b)


# which move the sample after its output, the state by steps of their own, or an estimate far
PUSHED = (
    samplers.PostHoc,
    samplers.DPS,
    samplers.DPSPC,
    samplers.ReSample,
    samplers.CDIM,
    samplers.MMPS,
    samplers.PDM,
)


def pinned(sampler):
    """Whether the sampler projects the state, with alpha = 1."""
    if isinstance(sampler, samplers.PDM):
        return sampler.where == "x_t"
    return isinstance(sampler, samplers.ProximalLangevin)


class Brittle(torch.nn.Module):
    """Wraps a denoiser; not finite for states on the left, below a noise level."""

    def __init__(self, denoiser, below, everywhere=False):
        super().__init__()
        self.denoiser, self.schedule = denoiser, denoiser.schedule
        self.below, self.everywhere = below, everywhere

    def forward(self, x_t, t):
        x_0 = self.denoiser(x_t, t).mean
        bad = torch.ones_like(x_t[:, :1]) > 0 if self.everywhere else x_t[:, :1] < -0.5
        low = self.schedule(t)[1] < self.below
        return torch.where(bad & low, torch.nan, x_0)


@every_sampler
def test_a_failed_member_poisons_no_other(make, checkerboard):
    result = make(Brittle(checkerboard, below=0.05), retries=0).sample(
        12, (2,), seed=5, dtype=torch.float64
    )
    sound = make(checkerboard, retries=0).sample(12, (2,), seed=5, dtype=torch.float64)
    failed = ~result.finite
    assert 0 < failed.sum() < 12
    assert not result.feasible[failed].any()
    assert result.violation[failed].isinf().all()
    far = result.finite & (sound.samples[:, 0] > 0.5)  # never near the brittle half plane
    assert far.any()
    torch.testing.assert_close(result.samples[far], sound.samples[far], rtol=1e-7, atol=1e-7)


@every_sampler
def test_a_level_at_which_all_fail_is_named(make, checkerboard):
    sampler = make(Brittle(checkerboard, below=0.05, everywhere=True))
    with pytest.raises(feasibly.SamplingError, match=r"non-finite by step \d+ of \d+.*sigma = 0"):
        sampler.sample(3, (2,))


class Sudden(Brittle):
    """Raises an error, from the given call on."""

    calls = 0
    until = math.inf

    def forward(self, x_t, t):
        self.calls += 1
        if self.calls > self.until:
            raise RuntimeError("out of memory")
        return self.denoiser(x_t, t)


@every_sampler
def test_finished_members_survive_an_error(make, checkerboard):
    denoiser = Sudden(checkerboard, below=0)
    whole = make(denoiser).sample(8, (2,), chunk=4)
    denoiser.until, denoiser.calls = denoiser.calls - 3, 0  # in the last chunk
    with pytest.raises(feasibly.SamplingError, match=r"Step \d+ .*out of memory") as error:
        make(denoiser).sample(8, (2,), chunk=4)
    partial = error.value.partial
    assert partial.members[:4] == [0, 1, 2, 3]
    assert torch.equal(partial.samples[:4], whole.samples[:4])


KEPT = {samplers.PPR, samplers.Ancestral, samplers.PredictorCorrector, samplers.HDC}


@every_sampler
@pytest.mark.parametrize(
    "schedule",
    [LogLogit(), VP(), Cosine(), Rectified()],
    ids=lambda s: type(s).__name__,
)
def test_samples_are_plausible_under_every_schedule(make, schedule):
    oracle = feasibly.oracles.Gaussian(torch.zeros(2), torch.eye(2), schedule)
    sampler = make(oracle, steps=24)
    result = sampler.sample(64, (2,))
    # |x| of a planar normal exceeds 5 once in 270,000 draws; some methods may jump that far, and
    # those that repeat their noise drift
    reach = 5 if type(sampler) in KEPT else 20
    assert result.samples.norm(dim=1).max() < reach
    assert result.samples.std() > 0.5


@pytest.mark.parametrize("minimize", [GaussNewton(), LBFGS(steps=4)], ids=repr)
def test_feasible_members_are_not_drawn_again(minimize, checkerboard):
    sampler = samplers.PPR(checkerboard, CONSTRAINT, minimize=minimize)
    result = sampler.sample(64, (2,), dtype=torch.float64)
    attempts = {s.attempt: s.members for s in result.trace}
    first = samplers.PPR(checkerboard, CONSTRAINT, minimize=minimize, retries=0).sample(
        64, (2,), dtype=torch.float64
    )
    assert attempts[0] == 64
    assert attempts[1] == 64 - first.feasible.sum()
    kept = first.feasible
    assert torch.equal(result.samples[kept], first.samples[kept])


class Events:
    """Wraps a constraint and a stream of noise, and keeps what was asked of them in order."""

    def __init__(self):
        self.seen, self.inputs = [], []

    def watch(self, sampler):
        residual, projection = sampler.constraint.residual, sampler.constraint.projection

        def looked(function):
            def look(x):
                self.seen.append("constraint")
                self.inputs.append(x)
                return function(x)

            return look

        sampler.constraint.residual = looked(residual)
        sampler.constraint.projection = looked(projection)

    def randn(self, x):
        self.seen.append("noise")
        return torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)


GUIDED = (samplers.DPS, samplers.DPSPC, samplers.MMPS)  # which push a step, and project nothing
DECLARED = {
    name: make
    for name, make in MAKE.items()
    if name
    not in (
        "Ancestral",
        "PredictorCorrector",
        "PostHoc",
        "PDM, x_0",
        "PCFM, relaxed",
        "CalibratedPPR, tries",  # which does nothing so early
        *ABLATION_NAMES,
    )
}


def first_step(make, denoiser):
    """Watches the first step, at the highest noise level."""
    more = {"start": 0.0} if "Proximal" in str(make(denoiser)) else {}
    sampler = make(denoiser, **more)
    if isinstance(sampler, samplers.PPR):
        sampler.sigma_max = math.inf
    sampler.constraint = copy.copy(sampler.constraint)
    x_1 = 80 * torch.randn(8, 2, generator=torch.Generator().manual_seed(1)).double()
    times = torch.linspace(1, 0, sampler.steps + 1, dtype=torch.float64)
    sampler.prepare(x_1[:2], sampler.constraint.residual(x_1[:2]))
    events = Events()
    events.watch(sampler)
    with torch.no_grad():
        sampler.step(x_1, times[0], times[1], events.randn)
    return sampler, events


@pytest.mark.parametrize("name", DECLARED)
def test_a_method_moves_what_it_declares(name, checkerboard):
    """At sigma = 80, where states are large, and clean estimates are not."""
    sampler, events = first_step(DECLARED[name], checkerboard)
    if isinstance(sampler, samplers.ReSample):
        pytest.skip("its first stage only guides")
    largest = events.inputs[0].detach().norm(dim=1).max()
    in_noise = sampler.space == "x_t" and not sampler.differentiates
    # CDIM looks at the noisy state's residual as well
    assert (largest > 10) == (in_noise or isinstance(sampler, samplers.CDIM))


@pytest.mark.parametrize("name", DECLARED)
def test_a_method_renoises_if_it_declares_so(name, checkerboard):
    sampler, events = first_step(DECLARED[name], checkerboard)
    if isinstance(sampler, (*GUIDED, samplers.ReSample)):
        pytest.skip("guidance is no projection")
    assert (events.seen[-1] == "noise") == sampler.renoises


@pytest.mark.parametrize("name", MAKE)
def test_a_method_asks_for_gradients_if_it_declares_so(name, checkerboard):
    sampler = MAKE[name](checkerboard)
    calls = sampler.sample(8, (2,), dtype=torch.float64).evaluations
    if "x_0" not in name:  # the ablation's variants are PPR in all but this
        assert (calls.backward > 0) == sampler.differentiates
