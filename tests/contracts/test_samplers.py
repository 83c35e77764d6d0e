"""What every method promises."""

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
from feasibly.network import Evaluations
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.problem import Problem
from feasibly.randomness import MemberNoise
from feasibly.run import dry_run
from feasibly.samplers.levels import Levels
from feasibly.schedules import VP, Cosine, LogLogit
from tests.helpers import on, sampled

CENTRES = torch.cartesian_prod(*[torch.tensor([-1.2, -0.3, 0.6])] * 2)
BOARD = GaussianMixture(
    torch.ones(9) / 9, CENTRES, 0.06 * torch.eye(2).expand(9, 2, 2), LogLogit()
)
NORMAL = Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]), LogLogit())
CURVE = LevelSet(GaussianRandomField(seed=3))
LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)
BOX = Bounds(-1.2, 0.6, tolerance=1e-8)
PAPER = {"minimize": LBFGS(steps=4, max_step=None)}
WARM = {"minimize": WarmLBFGS(steps=3), "last": WarmLBFGS(steps=6), "sigma_max": 10.0}


METHODS = {
    "PPR": samplers.PPR(repeats=1, minimize=GaussNewton(), sigma_max=0.75),
    "PPR, paper": samplers.PPR(**PAPER),
    "PPR, warm": samplers.PPR(**WARM),
    "TruncatedPPR": samplers.TruncatedPPR(minimize=GaussNewton()),
    "CalibratedPPR": samplers.CalibratedPPR(minimize=GaussNewton()),
    "Rejection": samplers.Rejection(level=0.3, tries=3, minimize=GaussNewton()),
    "SMC": samplers.SMC(particles=3, spacing="time"),  # so that few steps end at low noise
    "SMC, inside": samplers.SMC(levels=Levels(begun=2.0, drawn=0.0)),
    "PostHoc": samplers.PostHoc(),
    "Ancestral": samplers.Ancestral(),
    "PredictorCorrector": samplers.PredictorCorrector(),
    "DPS": samplers.DPS(zeta=0.1),
    "DPSPC": samplers.DPSPC(zeta=0.1),
    "MMPS": samplers.MMPS(),
    "MMPS, cg": samplers.MMPS(solver="cg", corrections=0),
    "HDC": samplers.HDC(),
    "ReSample": samplers.ReSample(zeta=0.02, every=2, travel=2, minimize=LBFGS(steps=4)),
    "CPS": samplers.CPS(minimize=LBFGS(steps=4)),
    "ProximalLangevin": samplers.ProximalLangevin(corrections=1),
    "ProximalLangevin, near": samplers.ProximalLangevin(lmbda=1e4),
    "TrustSampling": samplers.TrustSampling(bound=2.0),
    "PDM": samplers.PDM(repeats=2),
    "PDM, x_0": samplers.PDM(repeats=2, where="x_0"),
    "CDIM": samplers.CDIM(),
    "ECI": samplers.ECI(mixes=2),
    "ECI, resample": samplers.ECI(mixes=2, resample=3),
    "PCFM": samplers.PCFM(),
    "PCFM, relaxed": samplers.PCFM(penalty=0.1),
    "x_0^M": CleanSpace(**PAPER),
    "x_t^0": NoRenoise(repeats=1, **PAPER),
    "x_0^0": CleanSpaceNoRenoise(repeats=1, **PAPER),
}
METHODS = {name: replace(method, steps=8) for name, method in METHODS.items()}
# inequalities, and linear constraints or closed forms; the others have the curve
CONSTRAINTS = dict.fromkeys(("TruncatedPPR", "SMC, inside"), BOX)
CONSTRAINTS |= dict.fromkeys(("PDM", "CDIM", "ECI", "ECI, resample"), LINE)
ABLATION_NAMES = ("x_0^M", "x_t^0", "x_0^0")
ABLATIONS = {CleanSpace, NoRenoise, CleanSpaceNoRenoise}
# single members, and the ablations, may be infeasible: that is not what is tested here
pytestmark = [
    pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning"),
    pytest.mark.filterwarnings("ignore::feasibly.errors.CalibrationWarning"),
]
# a second variant of a method, after a comma, is a slow test, as is one of PPR for its ablation
SLOW = {name for name in METHODS if ", " in name or name in ABLATION_NAMES}
every_method = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in METHODS]
)
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
OUTPUTS = ("state", "denoised", "projected")
N, SEED = 12, 5
SHORT = {"steps": 5}
REJECTION = samplers.Rejection
PILOT = 256 * 9 // 4  # evaluations of Rejection's pilot in chunks of 4, at most


def problem(name, denoiser=BOARD):
    # double precision: rounding differs between batch sizes, and projections amplify it
    return Problem(denoiser, CONSTRAINTS.get(name, CURVE), (2,), dtype=torch.float64)


@functools.cache
def pilot(**options):
    kernel = replace(METHODS["Rejection"], **options).bind(problem("Rejection"))
    (found,), _ = dry_run([kernel], 0, 256, Evaluations())
    return found.pilot


def make(name, denoiser=BOARD, **more):
    kernel = replace(METHODS[name], **more).bind(problem(name, denoiser))
    if name == "Rejection" and getattr(denoiser, "denoiser", denoiser) is BOARD:
        return replace(kernel, pilot=pilot(**more))  # which is sampled once
    return kernel


def under(kernel, constraint, **more):
    return replace(kernel, problem=kernel.problem.but(constraint=constraint), **more)


def sample(kernel, ids, **settings):
    return sampled(kernel, ids, (2,), seed=SEED, dtype=torch.float64, **settings)


@functools.cache
def run(name):
    """One and the same ensemble, which several tests look at."""
    return sample(make(name), N)


def test_no_method_is_left_out():
    public = set(samplers.METHODS.values())
    assert {method.__name__ for method in public} | {"Method", "METHODS"} == set(samplers.__all__)
    # TunedPPR becomes PPR on a problem
    assert {type(make(name)) for name in METHODS} == public - {samplers.TunedPPR} | ABLATIONS


@every_method
def test_a_result_describes_every_member(name):
    kernel, result = make(name), run(name)
    assert result.samples.shape == (N, 2)
    assert result.samples.dtype == torch.float64
    assert result.samples.isfinite().all()
    assert result.members == list(range(N))
    assert result.method == repr(kernel)
    assert result.trace[-1].forward <= result.evaluations.forward
    assert [s.step for s in result.trace][-1] == kernel.steps
    c = kernel.constraint.violation(result.samples)
    torch.testing.assert_close(result.violation, c)
    assert torch.equal(result.feasible, c <= kernel.constraint.tolerance)


@on_a_gpu
@every_method
def test_members_on_a_gpu_are_those_of_the_cpu(name):
    there = sample(make(name, copy.deepcopy(BOARD).to("cuda")), N)
    assert there.samples.is_cuda
    gap = (there.samples.cpu() - run(name).samples).abs().amax(dim=1)
    chooses = isinstance(make(name), samplers.SMC | samplers.Rejection)
    assert (~(gap <= 1e-6)).sum() <= chooses  # rounding may choose another particle


@every_method
def test_chunks_do_not_change_members_and_observers_see_every_step(name):
    whole, seen, kernel = run(name), [], make(name)
    parts = sample(kernel, N, batch_size=5, observe=seen.append)
    torch.testing.assert_close(whole.samples, parts.samples, rtol=1e-7, atol=1e-7)
    assert parts.members == whole.members
    assert whole.evaluations.member_forward == parts.evaluations.member_forward
    chunks = [list(range(5)), list(range(5, 10)), [10, 11]]
    chunks = [list(range(N))] if kernel.shares else chunks  # which begin together
    steps = len(whole.trace)
    assert [state.members for state in seen] == [ids for ids in chunks for _ in range(steps)]
    times = kernel.times()[-steps:].tolist()
    assert [state.t.item() for state in seen] == times * len(chunks)
    assert [s.sigma for s in parts.trace] == [kernel.noise_level(state.t) for state in seen]
    if kernel.output != "denoised":  # what was seen last is what came out
        last = torch.cat([s.x_0 for s in seen if s.t == 0])
        torch.testing.assert_close(kernel.finish(last), parts.samples)


@every_method
def test_equal_seeds_give_equal_members_and_no_run_changes_the_kernel(name):
    kernel = make(name, **SHORT)
    if isinstance(kernel, samplers.Rejection):
        kernel = replace(kernel, pilot=None)  # which is of double precision
    before = dict(vars(kernel))
    first, again, other = (sampled(kernel, 4, (2,), seed=seed).samples for seed in (0, 0, 1))
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()
    assert vars(kernel).keys() == before.keys()
    assert all(vars(kernel)[key] is value for key, value in before.items())


@every_method
def test_a_member_has_its_own_target_in_whatever_batch(name):
    """CDIM takes a matrix alone, and Rejection one target in a run."""
    kernel = make(name)
    constraint = kernel.constraint
    refuses = isinstance(kernel, samplers.CDIM) or kernel.one_target
    if refuses or constraint.equalities is None or kernel.shares:
        return
    targets = torch.linspace(-0.1, 0.1, N).double()[:, None]
    each = under(kernel, EachMember(constraint, targets), **SHORT)
    alone = sample(each, [7]).samples
    batch = sample(each, N).samples
    torch.testing.assert_close(batch[7:8], alone, rtol=1e-6, atol=1e-6)
    if not constraint.linear:  # else some project in closed form
        # it is the kernel with the target in the constraint
        moved = Equality(lambda x: constraint.residual(x) - targets[7], constraint.tolerance)
        one = under(kernel, moved, **SHORT)
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


@every_method
def test_outputs_differ_by_the_last_noise_only_and_none_exceeds_its_budget(name):
    """Of a Gaussian, whose denoiser moves every state."""
    kernel, found = make(name, NORMAL), {}
    m = kernel.constraint.residual(torch.zeros(1, 2).double()).shape[1]
    for output in OUTPUTS:
        result = sample(replace(kernel, output=output), 6)
        found[output], budget = result.samples, replace(kernel, output=output).budget(m)
        assert result.evaluations.forward <= budget[0] + PILOT * (type(kernel) is REJECTION)
        assert result.evaluations.backward <= budget[1] + PILOT * (type(kernel) is REJECTION)
    # the last step changes an estimate by its noise level's size at most
    sigma = kernel.noise_level(kernel.times()[-2])
    for output in ("state", "denoised"):
        gap = (found[output] - found["projected"]).norm(dim=1)
        assert isinstance(kernel, MOVED) or gap.max() < 40 * sigma
        # without renoising the state is x_t^*, or x_t if it is inside, whose denoised mean is the
        # clean estimate; a state that is itself projected is its own
        kept = isinstance(kernel, NoRenoise | samplers.TruncatedPPR) or "inside" in name
        same = (output == "denoised" and kept) or (output == "state" and projects_states(kernel))
        assert torch.equal(found[output], found["projected"]) == same


def projects_states(kernel):
    """Whether the kernel projects the state, with alpha = 1."""
    if isinstance(kernel, samplers.PDM):
        return kernel.where == "x_t"
    return isinstance(kernel, samplers.ProximalLangevin)


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
    return dry_run([make(name, **more)], 0, 5, Evaluations())[0][0]


@every_method
def test_a_step_is_a_function_that_leaves_its_arguments_as_they_are(name):
    """And so is the beginning, given noise from its own beginning."""
    kernel, ids = prepared(name), range(4)
    with torch.no_grad(), members.calling(ids):
        start, again = (kernel.begin(noise(ids)) for _ in range(2))
        assert equal(start, again)
        x_t, memory = start.x, start.memory
        for k, (t, s) in enumerate(pairwise(start.times)):
            before = copy.deepcopy((x_t, t, s, memory))
            step, again = (kernel.step(x_t, t, s, noise(ids, seed=k), memory) for _ in range(2))
            assert equal(step, again)
            assert equal((x_t, t, s, memory), before)
            x_t, memory = step.x, step.memory


@every_method
def test_copies_and_pickles_run_as_the_kernel_does(name):
    kernel = prepared(name, **SHORT)
    copies = [copy.copy(kernel), replace(kernel), copy.deepcopy(kernel)]
    copies.append(pickle.loads(pickle.dumps(copies[-1])))
    assert {repr(other) for other in copies} == {repr(kernel)}
    assert [type(other) for other in copies] == [type(kernel)] * 4
    # the last is a copy of a copy
    assert torch.equal(sample(copies[-1], 3).samples, sample(kernel, 3).samples)
    assert copies[0].denoiser is copies[1].denoiser is kernel.denoiser
    assert copies[0].constraint is copies[1].constraint is kernel.constraint


@every_method
def test_a_kernel_cannot_be_changed(name):
    kernel = make(name)
    for key in (*vars(kernel), "something_else"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(kernel, key, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del kernel.steps


@every_method
def test_its_words_have_every_parameter_and_a_replacement_differs_in_one(name):
    kernel = make(name)
    for field in dataclasses.fields(kernel):
        if field.init and field.name not in ("pilot", "bounds", "problem"):
            value = getattr(kernel, field.name)
            quiet = value is None or value == field.metadata.get("quiet")
            assert (f"{field.name}={value!r}" in repr(kernel)) != quiet
            assert repr(value) == repr(copy.deepcopy(value)), "it is no address"
    assert repr(kernel).startswith(f"{type(kernel).__name__}(steps=8")
    method = replace(kernel, problem=None)
    assert repr(kernel) == f"{method!r} with {kernel.constraint!r}"
    changed = replace(kernel, steps=7)
    assert type(changed) is type(kernel)
    assert repr(changed) == repr(kernel).replace("(steps=8", "(steps=7", 1)
    assert (kernel.steps, len(changed.times())) == (8, 8)


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


@every_method
def test_a_failed_member_poisons_no_other(name):
    kernel = make(name, Brittle(BOARD, below=0.05))
    result = sample(kernel, N)
    failed = ~result.finite
    assert (0 if kernel.shares else 1) <= failed.sum() < N  # what failed has no weight
    assert not result.feasible[failed].any()
    assert result.violation[failed].isinf().all()
    if kernel.shares:  # which has other samples then
        return
    sound = run(name).samples
    far = result.finite & (sound[:, 0] > -0.2)  # never near the brittle half plane
    assert far.any()
    torch.testing.assert_close(result.samples[far], sound[far], rtol=1e-7, atol=1e-7)


@every_method
def test_a_level_at_which_all_fail_is_named(name):
    kernel = make(name, Brittle(BOARD, below=0.05, everywhere=True))
    with pytest.raises(feasibly.SamplingError, match=r"non-finite by step \d+ of 8.*sigma = 0"):
        sample(kernel, 3)


class Sudden(Brittle):
    """Raises an error, from the given call on."""

    calls = 0
    until = math.inf

    def forward(self, x_t, t):
        self.calls += 1
        if self.calls > self.until:
            raise RuntimeError("out of memory")
        return self.denoiser(x_t, t)


@every_method
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


@pytest.mark.slow
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
    for name in METHODS
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
    kernel, events = make(name), Events()
    if isinstance(kernel, samplers.PPR):
        kernel = replace(kernel, sigma_max=math.inf)
    if isinstance(kernel, samplers.ProximalLangevin):
        kernel = replace(kernel, start=0.0)
    if isinstance(kernel, samplers.ECI):
        kernel = replace(kernel, resample=1)
    kernel = under(kernel, events.watched(kernel.constraint))
    x_1 = 80 * torch.randn(8, 2, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        kernel.step(x_1, *kernel.times()[:2], events.randn)
    return kernel, events


@pytest.mark.parametrize("name", DECLARED)
def test_a_method_moves_what_it_declares_and_renoises_if_it_declares_so(name):
    """At sigma = 80, where states are large, and clean estimates are not."""
    kernel, events = first_step(name)
    if isinstance(kernel, samplers.ReSample):
        pytest.skip("its first stage only guides")
    largest = events.inputs[0].detach().norm(dim=1).max()
    in_noise = kernel.space == "x_t" and not kernel.differentiates
    # CDIM looks at the noisy state's residual as well
    assert (largest > 10) == (in_noise or isinstance(kernel, samplers.CDIM))
    if not isinstance(kernel, GUIDED):  # guidance is no projection
        assert (events.seen[-1] == "noise") == kernel.renoises


@pytest.mark.parametrize("name", [name for name in METHODS if "x_0" not in name])
def test_a_method_takes_gradients_if_it_declares_so(name):
    """The ablation's variants in x_0-space are PPR in all but this."""
    assert (run(name).evaluations.backward > 0) == make(name).differentiates


@pytest.mark.parametrize(
    "wrong",
    [lambda x: x, [LINE, BOX], BOARD, Bounds, torch.ones(2)],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_constraint_and_swapped_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=r"^sample\(constraint=...\) takes a constraint"):
        Problem(BOARD, wrong, (2,))
    with pytest.raises(ValueError, match=r"^sample got a constraint, LevelSet"):
        Problem(CURVE, BOARD, (2,))


def test_whole_numbers_of_other_libraries_are_taken():
    for kind in samplers.METHODS.values():
        one, other = (kind(steps=steps) for steps in (np.int64(4), 4))
        assert one == other
        assert repr(one) == repr(other)


def test_who_enforces_a_constraint_needs_one():
    free = Problem(BOARD, None, (2,))
    for kind in samplers.METHODS.values():
        if kind.enforces:
            with pytest.raises(ValueError, match=f"^{kind.__name__} needs a constraint"):
                kind().bind(free)
        else:
            assert kind().bind(free).constraint is None


def test_what_is_no_minimizer_is_refused_in_words():
    for method in (*METHODS.values(), samplers.TunedPPR()):
        for field in dataclasses.fields(method):
            if field.name not in ("minimize", "last"):
                continue
            words = rf"{field.name}=...\) takes a minimizer( or None)?, got"
            # None is what PDM has for a closed form, PPR for no other one at the end, and others
            # for one that is chosen
            for wrong in (3, LBFGS, *[None] * (field.default is not None)):
                with pytest.raises(ValueError, match=f"^{type(method).__name__}.{words}"):
                    replace(method, **{field.name: wrong})


@pytest.mark.parametrize(
    "options",
    [{"steps": 0}, {"steps": 2.5}, {"eta": 1.5}, {"spacing": "sigma"}, {"output": "clean"}],
    ids=str,
)
def test_bad_values_of_what_all_have_are_refused(options):
    for kind in set(samplers.METHODS.values()) - {samplers.ECI, samplers.PCFM, samplers.PDM}:
        words = rf"^{kind.__name__}\({next(iter(options))}=...\)"
        with pytest.raises(ValueError, match=words):
            kind(**options)


@every_method
def test_a_method_is_a_value_that_holds_no_problem(name):
    """Binding leaves it as it is, and equal methods have equal kernels."""
    method = METHODS[name]
    again, other, before = copy.deepcopy(method), replace(method, steps=7), dict(vars(method))
    assert method == again != other
    assert len({method, again, other}) == 2
    with pytest.raises(ValueError, match="is not bound to a problem"):
        method.step(torch.zeros(1, 2), *torch.tensor([0.6, 0.5]))
    kernels = [one.bind(problem(name)) for one in (method, method, again)]
    assert kernels[0] == kernels[1] == kernels[2]
    assert len(set(map(repr, kernels))) == 1
    assert vars(method) == before
    assert method.problem is None


@every_method
def test_a_kernel_rebinds(name):
    """It is then the method's kernel on the other problem, whose checks are made."""
    first, other = problem(name), problem(name, NORMAL)
    kernel, expected = (replace(METHODS[name], **SHORT).bind(one) for one in (first, other))
    moved = replace(kernel, problem=other)
    assert moved.denoiser is other.denoiser
    assert kernel.denoiser is first.denoiser
    assert torch.equal(sample(moved, 3).samples, sample(expected, 3).samples)
    if kernel.enforces:
        with pytest.raises(ValueError, match="needs a constraint"):
            under(kernel, None)


@dataclasses.dataclass(frozen=True)
class Scaled(samplers.Ancestral):
    """A user's method, with one more option."""

    gain: float = 1.0

    def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
        step = super().step(x_t, t, s, randn, memory)
        return step._replace(x_0=self.gain * step.x_0)


def test_a_users_method_under_a_plain_dataclass_is_described_by_its_options():
    one, two = (Scaled(steps=8, gain=gain, output="projected") for gain in (1.0, 2.0))
    assert one == replace(two, gain=1) != two
    assert hash(one) == hash(replace(two, gain=1))
    with pytest.raises(ValueError, match=r"Scaled\(gain=...\) takes a number"):
        Scaled(gain="much")
    with pytest.raises(ValueError, match=r"Scaled\(steps=...\)"):
        Scaled(steps=0)
    kernel = on(two, BOARD)
    first, second = sample(on(one, BOARD), N), sample(kernel, N)
    torch.testing.assert_close(second.samples, 2 * first.samples)
    assert first.method != second.method
    assert second.method == repr(kernel) == f"{two!r} with None"
    assert repr(two).startswith("Scaled(steps=8, ")
    assert "gain=2.0" in repr(two)


@dataclasses.dataclass(frozen=True)
class Pair(samplers.Method):
    """A method whose step returns no step."""

    enforces = False

    def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
        return x_t, x_t


def test_a_method_that_breaks_the_contract_is_named():
    with pytest.raises(feasibly.SamplingError, match=r"`step` returned tuple, not Step"):
        sampled(on(Pair(), BOARD), 2, (2,))
