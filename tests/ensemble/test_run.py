import time
from functools import partial

import numpy as np
import pytest
import torch

from feasibly import PPR, Ancestral, ensemble
from feasibly.constraints import Equality, Inequality
from feasibly.ensemble import Footprint, Store, Summary, memory
from feasibly.errors import CalibrationWarning, DenoiserError, InfeasibleWarning, StoreError
from feasibly.minimizers import GaussNewton
from feasibly.samplers import PostHoc
from tests.ensemble.conftest import (
    MEMBERS,
    PLAIN,
    SEARCH,
    Disturbed,
    circle,
    draw,
    same,
    toy,
    values,
)
from tests.helpers import on, sampled


@pytest.mark.parametrize("size", [1, 16, "auto"])
def test_members_do_not_depend_on_chunks(path, undisturbed, size):
    summary = draw(path, batch_size=size)
    same(values(path), undisturbed)
    assert summary.counted == summary.asked == MEMBERS
    assert not summary.is_short


def test_members_do_not_depend_on_processes(path, undisturbed, start):
    crew = [start(draw, path, rank=k, workers=4) for k in range(4)]
    for process in crew:
        process.join()
        assert process.exitcode == 0
    same(values(path), undisturbed)
    assert draw(path, fault=never).counted == MEMBERS


def never(call, rows):
    raise AssertionError("a member was sampled again")


def test_a_slow_member_holds_no_other_up(path, undisturbed, start):
    # the first process does not go on with member 0 before the others are there
    def wait(call, rows):
        if 0 in rows:
            store = Store(path)
            while set(store.missing()) - {0}:
                time.sleep(0.01)

    faults = (wait, None)
    crew = [start(draw, path, fault=faults[k], batch_size=1, rank=k, workers=2) for k in range(2)]
    for process in crew:
        process.join()
        assert process.exitcode == 0
    same(values(path), undisturbed)
    drawn = {r.member: r.worker for r in Store(path).all_records()}
    assert len({drawn[m] for m in range(1, MEMBERS)}) == 1


def test_as_many_members_as_fit_are_sampled_at_a_time(path, monkeypatch):
    sizes, plans = [], []
    monkeypatch.setattr(memory, "room", lambda device: 2 * (5 + 3 * 10**3))
    monkeypatch.setattr(memory, "estimate", lambda *args, **options: Footprint(10**3, 5))
    draw(
        path,
        fault=lambda call, rows: sizes.append(len(rows)),
        batch_size="auto",
        planned=lambda footprint, chunk: plans.append((footprint.of(chunk), chunk)),
    )
    # PPR may ask for some members of a chunk only
    assert sizes[0] == max(sizes) == 3
    assert plans == [(3005, 3)]


@pytest.mark.parametrize(
    ("seen", "told", "sharing"),
    [(1, "", 8), (4, "", 2), (1, "1", 1), (1, "a100:1", 1), (4, "1", 2)],
)
def test_a_gpu_is_shared_by_those_who_see_it(monkeypatch, seen, told, sharing):
    found = []
    monkeypatch.setattr(memory, "estimate", lambda *args, **options: Footprint(1, 0))
    monkeypatch.setattr(memory, "room", lambda device: 0)
    monkeypatch.setattr(memory, "fitting", lambda footprint, free, n: found.append(n))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", told)
    kernel = toy()
    kernel.problem.device = torch.device("cuda")
    memory.pace_of([kernel], 8, 8, 8)
    assert found == [sharing]


def test_as_many_members_are_sampled_at_a_time_as_a_minute_allows(path, monkeypatch):
    sizes = []
    slow = Footprint(1, 0, member_seconds=20.0)
    monkeypatch.setattr(memory, "estimate", lambda *args, **options: slow)
    fault = lambda call, rows: sizes.append(len(set(rows)))  # noqa: E731
    draw(path, kernel=on(Ancestral(steps=4), Disturbed(fault, PLAIN)), batch_size="auto")
    # 3 members by the estimate; then all that are left, by the milliseconds that these took
    assert sizes == [3] * 5 + [5] * 5


def test_each_process_begins_with_members_of_its_own(path):
    drawn = []
    draw(path, fault=lambda call, rows: drawn.append(rows), batch_size=16, rank=1, workers=4)
    assert drawn[0] == [1, 5]
    assert {i for rows in drawn for i in rows} == set(range(MEMBERS))


def test_the_store_has_the_statistics_of_each_member(path):
    xarray = pytest.importorskip("xarray")
    summary = draw(path, infeasible="keep")
    loaded = xarray.open_zarr(path).load()
    result = sampled(toy(), MEMBERS, (2,), seed=3, batch_size=2, attempts=4)
    assert loaded["finished"].all()
    assert loaded["feasible"].values.tolist() == result.feasible.tolist()
    np.testing.assert_allclose(loaded["violation"], result.violation, atol=1e-9)
    assert loaded["forward"].sum() == result.evaluations.member_forward
    assert loaded["backward"].sum() == result.evaluations.member_backward
    assert (loaded["seconds"] > 0).all()
    assert loaded["seconds"].attrs["units"] == "s"
    config = summary.store.config
    assert config.method == result.method
    assert (config.seed, config.tolerance, config.dtype) == (3, 1e-6, "float32")


def test_the_store_has_the_violations_along_the_way(path):
    summary = draw(path, n=3, batch_size=2)
    paths = np.array([r.path for r in summary.records], dtype=float)
    assert paths.shape == (3, 4)
    trace = sampled(toy(), 3, (2,), seed=3).trace
    np.testing.assert_allclose(np.median(paths, axis=0), [s.median for s in trace], rtol=1e-3)
    np.testing.assert_allclose(paths.max(axis=0), [s.worst for s in trace], rtol=1e-3)
    np.testing.assert_allclose(paths[:, -1], [r.violation for r in summary.records], atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 4}, "seed: 3 in the store, now 4"),
        ({"n": 7}, "holds an ensemble of 8 samples, and cannot shrink to 7; ask for 8 or more"),
        ({"n": 9, "seed": 4}, "seed: 3 in the store, now 4; members: 8 in the store, now 9"),
        ({"dtype": torch.float64}, "dtype"),
        ({"infeasible": "drop"}, "infeasible"),
        ({"kernel": on(Ancestral(steps=4), Disturbed(), circle())}, "method"),
        ({"kernel": on(PPR(steps=4), Disturbed(), circle(1e-3))}, "tolerance"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_store_is_locked_to_its_configuration(path, changes, words):
    draw(path)
    before = values(path)
    with pytest.raises(StoreError, match=words):
        draw(path, **changes)
    assert torch.equal(values(path), before)


def hard(tolerance=1e-9):
    """Searches that are too short: some members stay infeasible."""
    return on(PPR(minimize=GaussNewton(1), **SEARCH), Disturbed(), circle(tolerance))


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_the_policies_count_infeasible_members_or_do_not(tmp_path):
    pytest.importorskip("zarr")
    violation = sampled(hard(), MEMBERS, (2,), seed=3).violation
    hard_half = partial(hard, tolerance=1.01 * violation.median().item())
    result = sampled(hard_half(), MEMBERS, (2,), seed=3)
    good = result.feasible
    assert 0 < good.sum() < MEMBERS
    kept = draw(tmp_path / "keep.zarr", kernel=hard_half(), attempts=1)
    assert (kept.counted, kept.is_short) == (MEMBERS, False)
    same(values(tmp_path / "keep.zarr"), result.samples)

    options = {"kernel": hard_half(), "infeasible": "drop", "attempts": 1}
    dropped = draw(tmp_path / "drop.zarr", **options)
    assert dropped.counted == good.sum()
    assert dropped.is_short
    lost = (~good).nonzero().flatten().tolist()
    assert dropped.state("dropped") == lost
    assert f"{len(lost)} ({', '.join(map(str, lost))}) infeasible" in str(dropped)
    found = values(tmp_path / "drop.zarr")
    assert found[lost].isnan().all()
    same(found[good], result.samples[good])

    again = sampled(hard_half(), MEMBERS, (2,), seed=3, attempts=3)
    options |= {"infeasible": "retry", "attempts": 3}
    retried = draw(tmp_path / "retry.zarr", **options)
    assert retried.counted == again.feasible.sum() > good.sum()
    same(values(tmp_path / "retry.zarr"), again.samples)


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_infeasible_members_are_warned_of_with_their_number(path, policy):
    with pytest.warns(InfeasibleWarning, match=r"8 of 8 samples .*violation") as caught:
        summary = draw(path, kernel=hard(1e-12), infeasible=policy, attempts=1)
    cause = "stops too early; it converges with minimize=LBFGS"
    assert (cause in str(caught[0].message)) == (policy == "keep")  # else no sample tells
    assert caught[0].filename == draw.__code__.co_filename
    assert summary.infeasible == list(range(MEMBERS))
    assert "Warning: 8 of 8 samples do not satisfy the constraint" in str(summary)


class Steering(Ancestral):
    """Ends around the constraint, and not on it."""

    enforces, lands = True, False


def test_some_infeasible_members_are_news_of_methods_that_end_on_the_constraint_only(tmp_path):
    pytest.importorskip("zarr")
    some, none = Inequality(lambda x: x[:, :1], 1e-6), circle()
    for constraint, method in [(none, Ancestral), (some, Steering)]:
        kernel = on(method(steps=4, order=1, spacing="time"), Disturbed(), constraint)
        assert draw(tmp_path / method.__name__, kernel=kernel, attempts=1).infeasible
    nowhere = Equality(lambda x: x[:, :1].square() + 1, 1e-6)
    with pytest.warns(InfeasibleWarning, match="8 of 8 samples .* unless the constraint is imp"):
        draw(tmp_path / "nowhere.zarr", kernel=on(PostHoc(steps=4), Disturbed(), nowhere))
    with pytest.warns(InfeasibleWarning, match="8 of 8 samples"):
        draw(tmp_path / "none.zarr", kernel=on(Steering(steps=4), Disturbed(), none))


def test_what_another_process_finishes_at_the_end_is_in_the_arrays(path, monkeypatch):
    xarray = pytest.importorskip("xarray")
    draw(path, n=3)
    record = Store(path).records / "1.json"
    content = record.read_bytes()
    record.unlink()
    write = Store.write_variables

    def late(store, values):
        record.write_bytes(content)
        write(store, values)

    monkeypatch.setattr(Store, "write_variables", late)
    assert Summary.read(Store(path)).write().counted == 3
    assert xarray.open_zarr(path)["finished"].values.all()


def forget(path, members):
    """Takes records from a store, and returns them."""
    lost = {}
    for record in (Store(path).records / f"{i}.json" for i in members):
        lost[record] = record.read_bytes()
        record.unlink()
    return lost


def test_what_others_finish_meanwhile_is_left_to_them(path, undisturbed):
    draw(path)
    lost, steps = forget(path, [1, 3]), []

    def meanwhile(step):
        steps.append(step.step)
        for record, content in lost.items():
            record.write_bytes(content)

    draw(path, callback=meanwhile, rank=0, workers=2)
    assert steps == [1]  # of four
    assert all(record.read_bytes() == content for record, content in lost.items())
    same(values(path), undisturbed)


def first_of(path):
    """The member that a process samples first which joins a run that another has begun."""
    missing = []
    draw(path, n=5, batch_size=1)
    forget(path, range(1, 5))
    draw(path, n=5, batch_size=1, callback=lambda step: missing.append(Store(path).missing()))
    (member,) = set(range(1, 5)) - set(next(some for some in missing if len(some) == 3))
    return member


def test_who_joins_a_run_begins_anywhere(path):
    # ten begin with the same member with probability 4e-6
    assert len({first_of(path / str(k)) for k in range(10)}) > 1


class Doubtful(Ancestral):
    """Counts the members that it begins, and warns of them in the end."""

    def begin(self, noise):
        return super().begin(noise)._replace(statistics={"begun": len(noise.members)})

    def warnings(self, statistics):
        yield f"{statistics['begun']:.0f} members have weights that are off."


def test_what_a_kernel_warns_of_reaches_the_user_and_stays_in_the_store(path):
    kernel = on(Doubtful(steps=2), Disturbed())
    for _ in range(2):  # the second run finds the members there
        with pytest.warns(CalibrationWarning) as caught:
            summary = draw(path, kernel=kernel, batch_size=3)
        found = sorted(str(warning.message) for warning in caught)
        assert found == ["8 members have weights that are off."]
        assert sorted(summary.warnings) == found
        assert "Warning: 8 members have weights" in str(summary)


def test_retry_needs_several_attempts(path):
    with pytest.raises(ValueError, match="needs several attempts"):
        draw(path, infeasible="retry", attempts=1)


def test_a_bad_denoiser_leaves_no_store(tmp_path):
    def wrong(x_t, t):
        return x_t[:1]

    wrong.schedule = Disturbed().schedule
    with pytest.raises(DenoiserError):
        draw(tmp_path / "run.zarr", kernel=on(PPR(steps=4), wrong, circle()))
    assert list(tmp_path.iterdir()) == []


def test_a_summary_of_an_unfinished_run_says_what_is_missing(path):
    draw(path)
    for member in (1, 5):
        (Store(path).records / f"{member}.json").unlink()
    summary = Summary.read(Store(path))
    assert summary.missing == [1, 5]
    assert "Only 6 of 8 samples count: 2 (1, 5) not sampled yet." in str(summary)
    summary.write()
    xarray = pytest.importorskip("xarray")
    finished = xarray.open_zarr(path)["finished"].values
    assert (~finished).nonzero()[0].tolist() == [1, 5]
    assert ensemble.Summary is Summary
