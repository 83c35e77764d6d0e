import pytest
import torch
from torch import nn

from feasibly import PPR, Chunked, Equality, machine
from feasibly.denoisers import Karras
from feasibly.ensemble import Footprint, estimate, memory
from feasibly.ensemble.memory import Pace
from feasibly.errors import SamplingError
from feasibly.minimizers import LBFGS, GaussNewton, WarmLBFGS
from feasibly.nn import UNet
from feasibly.problem import Problem
from feasibly.run import Run
from feasibly.samplers import PCFM, SMC, Ancestral, CalibratedPPR
from feasibly.samplers.levels import Levels
from feasibly.schedules import LogLogit
from tests.ensemble.conftest import PLAIN, Disturbed, circle, toy
from tests.helpers import on, sampled

POPULATION = 64
CPU = torch.device("cpu")
MB = 2**20


@pytest.mark.parametrize(
    ("member", "fixed", "free", "sharing", "chunk"),
    [
        (100, 0, 2000, 1, 10),
        (100, 0, 2000, 4, 2),
        (100, 300, 2000, 1, 7),
        (1000, 0, 1000, 1, 1),
        (1, 0, 10**12, 1, 1024),
    ],
)
def test_a_chunk_takes_half_of_the_free_memory(member, fixed, free, sharing, chunk):
    assert memory.fitting(Footprint(member, fixed), free, sharing) == chunk


@pytest.mark.parametrize(
    ("member", "fixed", "chunk"),
    [
        (1.0, 0.0, 60),  # a minute
        (1.0, 30.0, 30),
        (0.001, 1.0, 1000),  # what fits into memory
        (0.0, 100.0, 1000),
        (100.0, 0.0, 1),  # members that take longer one by one are not held back by one another
        (1.0, 99.0, 51),  # and are not sampled one by one where that would take as long
    ],
)
def test_a_chunk_takes_a_minute_or_half_as_long_again_as_one_member(member, fixed, chunk):
    assert Pace(1000, Footprint(1, 0, member, fixed)).chunk == chunk


def test_a_chunk_is_chosen_by_the_duration_of_the_last():
    pace = Pace(1000, Footprint(1, 0, 1.0, 0.0))
    for seconds, chunk in [(240.0, 15), (15.0, 60), (0.06, 1000)]:
        pace.learn(pace.chunk, seconds)
        assert pace.chunk == chunk


def test_the_duration_of_a_chunk_is_that_of_all_steps(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(memory.time, "perf_counter", lambda: now[0])

    def work(call, rows):
        now[0] += 2 + len(rows)  # seconds of a call

    kernel = on(Ancestral(steps=15), Disturbed(work, PLAIN))
    found = estimate(kernel)
    assert (found.fixed_seconds, found.member_seconds) == (30.0, 15.0)


WEIGHTS = nn.Linear(MB, 1, bias=False).requires_grad_(False)


def passing():
    block = torch.ones(16 * MB)  # 64 MB
    del block
    return torch.ones(8 * MB)


def views():
    block = torch.ones(16 * MB)
    parts = block.reshape(4, -1).split(1)
    parts[0].mul_(2)
    return sum(part.view(-1)[:1] for part in parts)


def weights():
    return WEIGHTS.weight.t().mul_(1.0).flatten()[:1] + torch.ones(16 * MB)


def graph():
    x = torch.ones(4 * MB, requires_grad=True)  # 16 MB, of which up to five are there at a time
    return torch.autograd.grad((x.sin().cos()).sum(), x)


@pytest.mark.parametrize(
    ("action", "low", "high"),
    [(passing, 64, 65), (views, 64, 65), (weights, 128, 130), (graph, 64, 81)],
)
def test_a_peak_is_seen_after_it_has_passed(action, low, high):
    _, taken = memory.peak(action, CPU)
    assert low * MB <= taken < high * MB
    assert memory.peak(action, CPU)[1] == taken


def unet():
    torch.manual_seed(0)
    return Karras(UNet((32, 64)).requires_grad_(False), LogLogit())


def field(tolerance=1e-9):
    return Equality(lambda x: x[:, ::8, ::8].flatten(1) - 1, tolerance)


def flat():
    """A denoiser of large states that keeps next to nothing."""

    def network(x_t, t):
        alpha_t, sigma_t = network.schedule(t)
        return alpha_t * x_t / (alpha_t**2 + sigma_t**2)

    network.schedule = LogLogit()
    return network


def ends(x):
    return x[:, :100] ** 2 - 1


def past(**options):
    """A kernel that keeps a history of large states."""
    method = PPR(steps=6, repeats=1, minimize=WarmLBFGS(3, **options))
    return on(method, flat(), Equality(ends, 1e-9), (2 * 10**4,))


def projected(denoiser):
    return on(PPR(steps=4, repeats=1, minimize=LBFGS(2)), denoiser, field(), (8, 8))


CASES = {
    "UNet": (lambda: projected(unet()), 7),
    "chunked": (lambda: projected(Chunked(unet())), 5),
    "ancestral": (lambda: on(Ancestral(steps=6), unet(), None, (16, 16)), 9),
    "history": (past, 16),
    "coarse history": (lambda: past(pair_type="bfloat16"), 16),
    "small": (toy, 512),
}


@pytest.mark.parametrize(
    ("make", "count"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (name in ("chunked", "coarse history")))
        for name, case in CASES.items()
    ],
    ids=CASES.keys(),
)
def test_a_run_takes_what_was_estimated_from_a_few_of_its_steps(make, count):
    kernel = make()
    expected = estimate(kernel).of(count)
    made = Run([kernel], 5)
    _, taken = memory.peak(lambda: made.sample(list(range(count))), CPU)
    assert 0.8 * taken <= expected <= 1.2 * taken


@pytest.mark.slow
@pytest.mark.parametrize(("begun", "batch"), [(10.0, 32), (0.3, 16)])
def test_a_population_takes_at_most_what_was_estimated_from_the_smallest_one(
    monkeypatch, begun, batch
):
    """That is the most: particles may be doubled three times, and here are."""
    law = Equality(lambda x: x[:, :1] - 1, 1e-6)
    problem = Problem(flat(), law, (2 * 10**3,), batch_size=batch)
    levels = Levels(begun=begun, drawn=0.02)
    kernel = SMC(steps=5, levels=levels, minimize=GaussNewton(1)).bind(problem)
    expected = estimate(kernel, population=POPULATION).of(batch)
    monkeypatch.setattr("feasibly.samplers.smc.smoothed", lambda w: (w, 0.9))
    made = Run([kernel], 5)
    _, taken = memory.peak(lambda: made.sample(list(range(POPULATION))), CPU)
    assert taken <= expected <= 5 * taken


def test_kernels_whose_memory_is_a_tensor_or_that_leave_out_steps_are_measured():
    kernel = on(CalibratedPPR(steps=16, sparse=1.0), toy().denoiser, circle())
    assert kernel.taken < 14, "the step that was measured last"
    for each in (kernel, on(PCFM(steps=4), toy().denoiser, circle())):
        assert estimate(each).member > 0


@pytest.mark.slow
def test_the_time_of_particles_grows_with_their_steps(monkeypatch):
    """Of five steps that take a second each, by the clock of the network's calls."""
    now = [0.0]
    monkeypatch.setattr(memory, "_clock", lambda device: now[0])
    kernel = toy(lambda call, seen: now.__setitem__(0, now[0] + 1))
    found = [
        estimate(on(SMC(steps=n, minimize=GaussNewton(1)), kernel.denoiser, circle()), members=1)
        for n in (5, 20)
    ]
    assert found[1].seconds(1) == 4 * found[0].seconds(1) > 0


def test_members_that_would_not_fit_are_not_measured(monkeypatch):
    rows = []
    kernel = toy(lambda call, seen: rows.append(len(seen)))
    monkeypatch.setattr(memory, "room", lambda device: 100)
    found = estimate(kernel)
    assert set(rows) == {1}
    assert found.member > 0
    assert found.fixed == 0


def test_samples_that_do_not_fit_are_refused_before_they_are_made(monkeypatch):
    kernel = toy(lambda call, seen: pytest.fail("the network was asked"))
    kernel.denoiser.denoiser.calls = 0
    # six states of two numbers, one of them kept, and a thousand bytes besides
    monkeypatch.setattr(machine, "room", lambda device: 1055)
    with pytest.raises(ValueError, match=r"shape \(2,\).* takes at least 1.06 kB.*1.05 kB are"):
        estimate(kernel)


def test_several_members_that_do_not_fit_are_taken_for_one_each():
    def lack(call, rows):
        if len(rows) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    assert estimate(toy(lack)).fixed == 0


def test_a_measurement_that_fails_says_so():
    def fail(call, rows):
        raise ValueError("no such member")

    with pytest.raises(
        SamplingError, match=r"to measure its memory.*no such member.*--batch-size"
    ):
        estimate(toy(fail))


def test_a_measurement_leaves_members_as_they_are():
    measured, other = (
        on(PPR(steps=8, minimize=GaussNewton(2)), Disturbed(), circle()) for _ in range(2)
    )
    estimate(measured)
    found = [sampled(one, 3, (2,), seed=1) for one in (measured, other)]
    assert torch.equal(found[0].samples, found[1].samples)
    assert found[0].evaluations.forward == found[1].evaluations.forward


def test_the_limit_of_a_container_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    free = machine.room(CPU)
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert abs(machine.room(CPU) - free) < 2**32
    (tmp_path / "memory.max").write_text("5000\n")
    assert machine.room(CPU) == 4000


def test_a_lack_of_memory_is_known_by_its_cause():
    lack = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1")
    outer = ValueError("Step 3 failed")
    outer.__cause__ = lack
    for error in (lack, outer, MemoryError(), torch.OutOfMemoryError("CUDA out of memory")):
        assert machine.is_exhausted(error)
    assert not machine.is_exhausted(RuntimeError("shapes differ"))
    assert not machine.is_exhausted(None)
    with pytest.raises(RuntimeError) as huge:
        torch.empty(2**60)
    assert machine.is_exhausted(huge.value)
