"""What every sampler promises, whatever its method."""

import copy
import dataclasses
import functools
import math
import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import feasibly
from experiments.studies.ablation import CleanSpace, CleanSpaceNoRenoise, NoRenoise
from feasibly import members, samplers
from feasibly.constraints import (
    Bounds,
    EachMember,
    Equality,
    GaussianRandomField,
    LevelSet,
    Linear,
)
from feasibly.minimizers import LBFGS, GaussNewton, WarmLBFGS
from feasibly.minimizers.base import QUIET
from feasibly.network import Evaluations
from feasibly.oracles import Checkerboard, Gaussian
from feasibly.randomness import MemberNoise
from feasibly.run import dry_run
from feasibly.samplers.levels import Levels
from feasibly.schedules import VP, Cosine, LogLogit
from tests.helpers import on, sampled

BOARD = Checkerboard(4, LogLogit())
NORMAL = Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]), LogLogit())
CURVE = LevelSet(GaussianRandomField(seed=3))
LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)
BOX = Bounds(-1.2, 0.6, tolerance=1e-8)
PAPER = {"minimize": LBFGS(steps=4, max_step=None)}
WARM = {"minimize": WarmLBFGS(steps=3), "last": WarmLBFGS(steps=6), "sigma_max": 10.0}


def maker(method, constraint=CURVE, **options):
    def make(denoiser, **more):
        return method(denoiser, constraint, **({"steps": 8} | options | more))

    return make


@functools.cache
def pilot():
    sampler = on(samplers.Rejection(steps=8, level=0.3), BOARD, CURVE)
    (prepared,), _ = dry_run([sampler], (2,), torch.float64, "cpu", 0, 256, Evaluations())
    return prepared.pilot


def rejection(denoiser, **more):
    if getattr(denoiser, "denoiser", denoiser) is BOARD:  # whose pilot is sampled once
        more = {"pilot": pilot()} | more
    return maker(samplers.Rejection, level=0.3, tries=3, minimize=GaussNewton())(denoiser, **more)


MAKE = {
    "PPR": maker(samplers.PPR, repeats=1, minimize=GaussNewton(), sigma_max=0.75),
    "PPR, paper": maker(samplers.PPR, **PAPER),
    "PPR, warm": maker(samplers.PPR, **WARM),
    "TruncatedPPR": maker(samplers.TruncatedPPR, BOX, minimize=GaussNewton()),
    "CalibratedPPR": maker(samplers.CalibratedPPR, minimize=GaussNewton()),
    "Rejection": rejection,
    # drawn where the last projection converges, in so few steps
    "SMC": maker(samplers.SMC, particles=3, levels=Levels(drawn=0.2)),
    "SMC, inside": maker(samplers.SMC, BOX, levels=Levels(begun=2.0, drawn=0.0)),
    "PostHoc": maker(samplers.PostHoc),
    "Ancestral": maker(samplers.Ancestral),
    "PredictorCorrector": maker(samplers.PredictorCorrector),
    "DPS": maker(samplers.DPS, zeta=0.1),
    "DPSPC": maker(samplers.DPSPC, zeta=0.1),
    "MMPS": maker(samplers.MMPS),
    "MMPS, cg": maker(samplers.MMPS, solver="cg", corrections=0),
    "HDC": maker(samplers.HDC),
    "ReSample": maker(samplers.ReSample, zeta=0.02, every=2, travel=2, minimize=LBFGS(steps=4)),
    "CPS": maker(samplers.CPS, minimize=LBFGS(steps=4)),
    "ProximalLangevin": maker(samplers.ProximalLangevin, corrections=1),
    "ProximalLangevin, near": maker(samplers.ProximalLangevin, lmbda=1e4),
    "TrustSampling": maker(samplers.TrustSampling, bound=2.0),
    "PDM": maker(samplers.PDM, LINE, repeats=2),
    "PDM, x_0": maker(samplers.PDM, repeats=2, where="x_0"),
    # for linear constraints, or closed forms
    "CDIM": maker(samplers.CDIM, LINE),
    "ECI": maker(samplers.ECI, LINE, mixes=2),
    "ECI, resample": maker(samplers.ECI, LINE, mixes=2, resample=3),
    "PCFM": maker(samplers.PCFM),
    "PCFM, relaxed": maker(samplers.PCFM, penalty=0.1),
    "x_0^M": maker(CleanSpace, **PAPER),
    "x_t^0": maker(NoRenoise, repeats=1, **PAPER),
    "x_0^0": maker(CleanSpaceNoRenoise, repeats=1, **PAPER),
}
ABLATION_NAMES = ("x_0^M", "x_t^0", "x_0^0")
ABLATIONS = {CleanSpace, NoRenoise, CleanSpaceNoRenoise}
# single members, and the ablations, may be infeasible: that is not what is tested here
pytestmark = [
    pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning"),
    pytest.mark.filterwarnings("ignore::feasibly.errors.CalibrationWarning"),
]
every_sampler = pytest.mark.parametrize("name", MAKE)
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
OUTPUTS = ("state", "denoised", "projected")
N, SEED = 12, 5
SHORT = {"steps": 5}
REJECTION = samplers.Rejection
PILOT = 256 * 9 // 4  # evaluations of Rejection's pilot in chunks of 4, at most


def make(name, denoiser=BOARD, **more):
    return MAKE[name](denoiser, **more)


def sample(sampler, ids, **settings):
    # double precision: rounding differs between batch sizes, and projections amplify it
    return sampled(sampler, ids, (2,), seed=SEED, dtype=torch.float64, **settings)


@functools.cache
def run(name):
    """One and the same ensemble, which several tests look at."""
    return sample(make(name), N)


def test_no_sampler_is_left_out():
    public = set(samplers.METHODS.values())
    assert {method.__name__ for method in public} | {"Method", "METHODS"} == set(samplers.__all__)
    assert {type(make(name)) for name in MAKE} == public | ABLATIONS


@every_sampler
def test_a_result_describes_every_member(name):
    sampler, result = make(name), run(name)
    assert result.samples.shape == (N, 2)
    assert result.samples.dtype == torch.float64
    assert result.samples.isfinite().all()
    assert result.members == list(range(N))
    assert result.method == repr(sampler)
    assert result.trace[-1].forward <= result.evaluations.forward
    assert [s.step for s in result.trace][-1] == sampler.steps
    c = sampler.constraint.violation(result.samples)
    torch.testing.assert_close(result.violation, c)
    assert torch.equal(result.feasible, c <= sampler.constraint.tolerance)


@on_a_gpu
@every_sampler
def test_members_on_a_gpu_are_those_of_the_cpu(name):
    there = sample(make(name, copy.deepcopy(BOARD).to("cuda")), N)
    assert there.samples.is_cuda
    gap = (there.samples.cpu() - run(name).samples).abs().amax(dim=1)
    chooses = isinstance(make(name), samplers.SMC | samplers.Rejection)
    assert (~(gap <= 1e-6)).sum() <= chooses  # rounding may choose another particle


@every_sampler
def test_chunks_do_not_change_members_and_observers_see_every_step(name):
    whole, seen, sampler = run(name), [], make(name)
    parts = sample(sampler, N, batch_size=5, observe=seen.append)
    torch.testing.assert_close(whole.samples, parts.samples, rtol=1e-7, atol=1e-7)
    assert parts.members == whole.members
    assert whole.evaluations.member_forward == parts.evaluations.member_forward
    chunks = [list(range(5)), list(range(5, 10)), [10, 11]]
    chunks = [list(range(N))] if sampler.shares else chunks  # which begin together
    steps = len(whole.trace)
    assert [state.members for state in seen] == [ids for ids in chunks for _ in range(steps)]
    times = sampler.times()[-steps:].tolist()
    assert [state.t.item() for state in seen] == times * len(chunks)
    assert [s.sigma for s in parts.trace] == [sampler.noise_level(state.t) for state in seen]
    if sampler.output != "denoised":  # what was seen last is what came out
        last = torch.cat([s.x_0 for s in seen if s.t == 0])
        torch.testing.assert_close(sampler.finish(last), parts.samples)


@every_sampler
def test_equal_seeds_give_equal_members_and_no_run_changes_the_sampler(name):
    sampler = make(name, **SHORT)
    if isinstance(sampler, samplers.Rejection):
        sampler = replace(sampler, pilot=None)  # which is of double precision
    before = dict(vars(sampler))
    first, again, other = (sampled(sampler, 4, (2,), seed=seed).samples for seed in (0, 0, 1))
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()
    assert vars(sampler).keys() == before.keys()
    assert all(vars(sampler)[key] is value for key, value in before.items())
    assert sampler.denoiser.evaluations is None


@every_sampler
def test_a_member_has_its_own_target_in_whatever_batch(name):
    """CDIM takes a matrix alone, and Rejection one target in a run."""
    sampler = make(name)
    constraint = sampler.constraint
    refuses = isinstance(sampler, samplers.CDIM) or sampler.one_target
    if refuses or constraint.equalities is None or sampler.shares:
        return
    targets = torch.linspace(-0.1, 0.1, N).double()[:, None]
    each = replace(sampler, constraint=EachMember(constraint, targets), **SHORT)
    alone = sample(each, [7]).samples
    batch = sample(each, N).samples
    torch.testing.assert_close(batch[7:8], alone, rtol=1e-6, atol=1e-6)
    if not constraint.linear:  # else some project in closed form
        # it is the sampler with the target in the constraint
        moved = Equality(lambda x: constraint.residual(x) - targets[7], constraint.tolerance)
        one = replace(sampler, constraint=moved, **SHORT)
        torch.testing.assert_close(sample(one, [7]).samples, alone, rtol=1e-6, atol=1e-6)


# which move the sample after its last step, the state by steps of their own, or an estimate far
MOVED = (
    samplers.PostHoc,
    samplers.DPS,
    samplers.DPSPC,
    samplers.ReSample,
    samplers.CDIM,
    samplers.MMPS,
    samplers.PDM,
)


@every_sampler
def test_outputs_differ_by_the_last_noise_only_and_none_exceeds_its_budget(name):
    """Of a Gaussian, whose denoiser moves every state."""
    sampler, found = make(name, NORMAL), {}
    m = sampler.constraint.residual(torch.zeros(1, 2).double()).shape[1]
    for output in OUTPUTS:
        result = sample(replace(sampler, output=output), 6)
        found[output], budget = result.samples, replace(sampler, output=output).budget(m)
        assert result.evaluations.forward <= budget[0] + PILOT * (type(sampler) is REJECTION)
        assert result.evaluations.backward <= budget[1] + PILOT * (type(sampler) is REJECTION)
    # the last step changes an estimate by its noise level's size at most
    sigma = sampler.noise_level(sampler.times()[-2])
    for output in ("state", "denoised"):
        gap = (found[output] - found["projected"]).norm(dim=1)
        assert isinstance(sampler, MOVED) or gap.max() < 40 * sigma
        # without renoising the state is x_t^*, or x_t if it is inside, whose denoised mean is the
        # clean estimate; a state that is itself projected is its own
        kept = isinstance(sampler, NoRenoise | samplers.TruncatedPPR) or "inside" in name
        same = (output == "denoised" and kept) or (output == "state" and projects_states(sampler))
        assert torch.equal(found[output], found["projected"]) == same


def projects_states(sampler):
    """Whether the sampler projects the state, with alpha = 1."""
    if isinstance(sampler, samplers.PDM):
        return sampler.where == "x_t"
    return isinstance(sampler, samplers.ProximalLangevin)


def equal(a, b):
    """Whether two results of a step are the same to the last bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple):
        return type(a) is type(b) and all(map(equal, a, b))
    if dataclasses.is_dataclass(a):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return a == b


def noise(ids, seed=SEED):
    return MemberNoise(seed, ids, (2,), dtype=torch.float64)


def prepared(name, **more):
    return dry_run([make(name, **more)], (2,), torch.float64, "cpu", 0, 5, Evaluations())[0][0]


@every_sampler
def test_a_step_is_a_function_that_leaves_its_arguments_as_they_are(name):
    """And so is the beginning, given noise from its own beginning."""
    sampler, ids = prepared(name), range(4)
    with torch.no_grad(), members.calling(ids):
        start, again = (sampler.begin(noise(ids)) for _ in range(2))
        assert equal(start, again)
        x_t, memory = start.x, start.memory
        for k, (t, s) in enumerate(pairwise(start.times)):
            before = copy.deepcopy((x_t, t, s, memory))
            step, again = (sampler.step(x_t, t, s, noise(ids, seed=k), memory) for _ in range(2))
            assert equal(step, again)
            assert equal((x_t, t, s, memory), before)
            x_t, memory = step.x, step.memory


@every_sampler
def test_copies_and_pickles_run_as_the_sampler_does(name):
    sampler = prepared(name, **SHORT)
    copies = [copy.copy(sampler), replace(sampler), copy.deepcopy(sampler)]
    copies.append(pickle.loads(pickle.dumps(copies[-1])))
    assert {repr(other) for other in copies} == {repr(sampler)}
    assert [type(other) for other in copies] == [type(sampler)] * 4
    # the last is a copy of a copy
    assert torch.equal(sample(copies[-1], 3).samples, sample(sampler, 3).samples)
    assert copies[0].denoiser is copies[1].denoiser is sampler.denoiser
    assert copies[0].constraint is copies[1].constraint is sampler.constraint


@every_sampler
def test_a_sampler_cannot_be_changed(name):
    sampler = make(name)
    for key in (*vars(sampler), "something_else"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(sampler, key, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del sampler.steps


@every_sampler
def test_its_words_have_every_parameter_and_a_replacement_differs_in_one(name):
    sampler = make(name)
    for field in dataclasses.fields(sampler):
        if field.init and field.kw_only and field.name not in ("pilot", "bounds", "batch"):
            value = getattr(sampler, field.name)
            quiet = field.metadata == QUIET and value == field.default
            assert (f"{field.name}={value!r}" in repr(sampler)) != quiet
            assert repr(value) == repr(copy.deepcopy(value)), "it is no address"
    assert repr(sampler).startswith(f"{type(sampler).__name__}(steps=8")
    assert repr(sampler).endswith(f" with {sampler.constraint!r}")
    changed = replace(sampler, steps=7)
    assert type(changed) is type(sampler)
    assert repr(changed) == repr(sampler).replace("(steps=8", "(steps=7", 1)
    assert (sampler.steps, len(changed.times())) == (8, 8)


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
def test_a_failed_member_poisons_no_other(name):
    sampler = make(name, Brittle(BOARD, below=0.05))
    result = sample(sampler, N)
    failed = ~result.finite
    assert (0 if sampler.shares else 1) <= failed.sum() < N  # what failed has no weight
    assert not result.feasible[failed].any()
    assert result.violation[failed].isinf().all()
    if sampler.shares:  # which has other samples then
        return
    sound = run(name).samples
    far = result.finite & (sound[:, 0] > -0.2)  # never near the brittle half plane
    assert far.any()
    torch.testing.assert_close(result.samples[far], sound[far], rtol=1e-7, atol=1e-7)


@every_sampler
def test_a_level_at_which_all_fail_is_named(name):
    sampler = make(name, Brittle(BOARD, below=0.05, everywhere=True))
    with pytest.raises(feasibly.SamplingError, match=r"non-finite by step \d+ of 8.*sigma = 0"):
        sample(sampler, 3)


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
def test_finished_members_survive_an_error(name):
    denoiser = Sudden(BOARD, below=0)
    whole = sample(make(name, denoiser, **SHORT), 4, batch_size=2)
    denoiser.until, denoiser.calls = denoiser.calls - 3, 0  # in the last chunk
    with pytest.raises(feasibly.SamplingError, match=r"Step \d+ of 5.*out of memory") as error:
        sample(make(name, denoiser, **SHORT), 4, batch_size=2)
    partial = error.value.partial
    if make(name).shares:  # a population is finished at once
        assert partial is None
        return
    assert partial.members == [0, 1]
    assert torch.equal(partial.samples, whole.samples[:2])


@pytest.mark.parametrize(
    ("name", "farthest"),
    # |x| of a planar normal exceeds 5 once in 270,000 samples; where nothing bounds their
    # projections methods may jump
    [
        *(("PPR", 5), ("PPR, paper", 500), ("PPR, warm", 500), ("TruncatedPPR", 5)),
        *(("CalibratedPPR", 500), ("Rejection", 500), ("SMC", 500)),
        *(("SMC, inside", 500), ("Ancestral", 5), ("PredictorCorrector", 5)),
        *((name, 500) for name in ABLATION_NAMES),
    ],
)
def test_samples_are_plausible_under_schedules_that_shrink_the_signal(name, farthest):
    """Steps of the other methods are held against closed forms under such schedules."""
    for schedule in (VP(), Cosine()):
        oracle = Gaussian(torch.zeros(2), torch.eye(2), schedule)
        result = sample(make(name, oracle, steps=12), 48)
        assert result.samples.norm(dim=1).max() < farthest
        assert result.samples.std() > 0.4


class Events:
    """Wraps a constraint and a stream of noise, and keeps what was called of them in order."""

    def __init__(self):
        self.seen, self.inputs = [], []

    def watched(self, constraint):
        constraint = copy.copy(constraint)
        for name in ("residual", "projection"):
            setattr(constraint, name, self.noted(getattr(constraint, name)))
        return constraint

    def noted(self, function):
        def note(x):
            self.seen.append("constraint")
            self.inputs.append(x)
            return function(x)

        return note

    def randn(self, x):
        self.seen.append("noise")
        return torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)


GUIDED = (samplers.DPS, samplers.DPSPC, samplers.MMPS)  # which guide a step, and project nothing
DECLARED = [
    name
    for name in MAKE
    if name
    not in (
        "Ancestral",
        "PredictorCorrector",
        "PostHoc",
        "PDM, x_0",
        "PCFM, relaxed",
        "TruncatedPPR",  # which renoises some members
        "Rejection",  # which does nothing so early
        *ABLATION_NAMES,
    )
]


def first_step(name):
    """Watches the first step, at the highest noise level."""
    sampler, events = make(name), Events()
    if isinstance(sampler, samplers.PPR):
        sampler = replace(sampler, sigma_max=math.inf)
    if isinstance(sampler, samplers.ProximalLangevin):
        sampler = replace(sampler, start=0.0)
    if isinstance(sampler, samplers.ECI):
        sampler = replace(sampler, resample=1)
    sampler = replace(sampler, constraint=events.watched(sampler.constraint))
    x_1 = 80 * torch.randn(8, 2, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        sampler.step(x_1, *sampler.times()[:2], events.randn)
    return sampler, events


@pytest.mark.parametrize("name", DECLARED)
def test_a_method_moves_what_it_declares_and_renoises_if_it_declares_so(name):
    """At sigma = 80, where states are large, and clean estimates are not."""
    sampler, events = first_step(name)
    if isinstance(sampler, samplers.ReSample):
        pytest.skip("its first stage only guides")
    largest = events.inputs[0].detach().norm(dim=1).max()
    in_noise = sampler.space == "x_t" and not sampler.differentiates
    # CDIM looks at the noisy state's residual as well
    assert (largest > 10) == (in_noise or isinstance(sampler, samplers.CDIM))
    if not isinstance(sampler, GUIDED):  # guidance is no projection
        assert (events.seen[-1] == "noise") == sampler.renoises


@pytest.mark.parametrize("name", [name for name in MAKE if "x_0" not in name])
def test_a_method_takes_gradients_if_it_declares_so(name):
    """The ablation's variants in x_0-space are PPR in all but this."""
    assert (run(name).evaluations.backward > 0) == make(name).differentiates


@pytest.mark.parametrize(
    "wrong",
    [lambda x: x, [LINE, BOX], BOARD, Bounds, torch.ones(2)],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_constraint_and_swapped_arguments_are_refused(wrong):
    for method in samplers.METHODS.values():
        with pytest.raises(
            ValueError, match=rf"^{method.__name__}\(constraint=...\) takes a constr"
        ):
            method(BOARD, wrong)
        with pytest.raises(ValueError, match=rf"^{method.__name__} got a constraint, LevelSet"):
            method(CURVE, BOARD)


def test_whole_numbers_of_other_libraries_are_taken():
    for method in samplers.METHODS.values():
        sampler = method(BOARD, LINE, steps=np.int64(4))
        assert repr(sampler) == repr(method(BOARD, LINE, steps=4))


def test_who_enforces_a_constraint_needs_one():
    for method in samplers.METHODS.values():
        if method.enforces:
            with pytest.raises(ValueError, match=f"^{method.__name__} needs a constraint"):
                method(BOARD)
        else:
            assert method(BOARD).constraint is None


def test_what_is_no_minimizer_is_refused_in_words():
    for name in MAKE:
        sampler = make(name)
        for field in dataclasses.fields(sampler):
            if field.name not in ("minimize", "last"):
                continue
            words = rf"{field.name}=...\) takes a minimizer( or None)?, got"
            # None is what PDM has for a closed form, and PPR for no other one at the end
            for wrong in (3, LBFGS, *[None] * (field.default is not None)):
                with pytest.raises(ValueError, match=f"^{type(sampler).__name__}.{words}"):
                    replace(sampler, **{field.name: wrong})


@pytest.mark.parametrize(
    "options",
    [{"steps": 0}, {"steps": 2.5}, {"eta": 1.5}, {"spacing": "sigma"}, {"output": "clean"}],
    ids=str,
)
def test_bad_values_of_what_all_have_are_refused(options):
    for method in set(samplers.METHODS.values()) - {samplers.ECI, samplers.PCFM, samplers.PDM}:
        words = rf"^{method.__name__}\({next(iter(options))}=...\)"
        with pytest.raises(ValueError, match=words):
            method(BOARD, LINE, **options)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Pair(samplers.Method):
    """A sampler whose step returns no step."""

    enforces = False

    def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
        return x_t, x_t


def test_a_new_sampler_that_breaks_the_contract_is_named():
    with pytest.raises(feasibly.SamplingError, match=r"`step` returned tuple, not Step"):
        sampled(Pair(BOARD), 2, (2,))
    own_repr = dataclasses.dataclass(frozen=True)(type("Own", (Pair,), {}))
    with pytest.raises(TypeError, match=r"Own has a repr of its own.*repr=False"):
        own_repr(BOARD)
