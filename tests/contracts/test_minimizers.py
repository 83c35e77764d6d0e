"""What every minimizer promises, whatever its method."""

import inspect
import pkgutil
from dataclasses import FrozenInstanceError
from functools import partial
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly import minimizers
from feasibly.minimizers import LBFGS, GaussNewton, Minimizer

check = settings(derandomize=True, deadline=None, max_examples=20)


def found() -> dict[str, type[Minimizer]]:
    kinds = {}
    for module in pkgutil.walk_packages(minimizers.__path__, f"{minimizers.__name__}."):
        for name, kind in inspect.getmembers(import_module(module.name), inspect.isclass):
            if issubclass(kind, Minimizer) and not inspect.isabstract(kind):
                kinds[name] = kind
    return kinds


KINDS = found()
VARIANTS = {
    **KINDS,
    "GaussNewton by Krylov": partial(GaussNewton, dense=0),
    "LBFGS without line search": partial(LBFGS, line_search=False),
    "LBFGS of one pair": partial(LBFGS, memory=1),
}
minimizer_of_all = pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS.keys())


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def estimate(x):
    """A clean estimate that can be told from its iterate."""
    return torch.sin(x) + 2


def rosenbrock(x):
    return torch.stack((10 * (x[:, 1] - x[:, 0] ** 2), 1 - x[:, 0]), dim=1), estimate(x)


def mild(x):
    """Two smooth residuals of samples of any shape, whose least value is zero."""
    v = x.flatten(start_dim=1)
    ramp = torch.linspace(0.2, 1, v.shape[1], dtype=x.dtype)
    r = torch.stack((v @ ramp + torch.sin(v[:, 0]) / 4 - 0.3, v[:, 0] - v[:, 1] ** 2 / 4), dim=1)
    return r, estimate(x)


def many(x):
    """Twelve residuals, more than Gauss-Newton solves densely."""
    v = x @ MIX.to(x.dtype)
    return v + torch.sin(v) / 4 - 0.3, estimate(x)


def unreachable(x):
    return x.square() + 1, estimate(x)


MIX = normal(16, 12, seed=9) / 4
PROBLEMS = {
    "rosenbrock": (rosenbrock, normal(6, 2)),
    "mild": (mild, normal(6, 5)),
    "matrices": (mild, normal(6, 3, 4)),
    "many residuals": (many, normal(6, 16)),
}
problem_of_all = pytest.mark.parametrize(("residual", "x"), PROBLEMS.values(), ids=PROBLEMS.keys())


class Recorder:
    """A residual that remembers the iterates at which it was evaluated.

    Forward-mode products evaluate it as well, on wrapped tensors: those are no iterates.
    """

    def __init__(self, residual):
        self.residual, self.iterates = residual, []

    def __call__(self, x):
        if not torch._C._functorch.is_functorch_wrapped_tensor(x):
            self.iterates.append(x.detach().clone())
        return self.residual(x)


def value_of(residual, x):
    return residual(x)[0].square().sum(dim=1)


def assert_same(one, other, atol=1e-10):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=atol, equal_nan=True)


def rows(minimum, i):
    return tuple(part[i] for part in minimum)


def test_every_concrete_minimizer_is_exported():
    assert set(KINDS) <= set(minimizers.__all__)
    assert {"GaussNewton", "LBFGS", "Adam"} <= set(KINDS)


@minimizer_of_all
@problem_of_all
def test_a_member_ends_up_the_same_alone_as_in_any_batch(make, residual, x):
    minimize = make(steps=6)
    together = minimize(residual, x)
    for i in range(len(x)):
        assert_same(rows(together, slice(i, i + 1)), minimize(residual, x[i : i + 1]))
    order = torch.tensor([4, 1, 5])
    assert_same(rows(together, order), minimize(residual, x[order]))


@minimizer_of_all
@problem_of_all
def test_members_that_rest_do_not_disturb_those_that_search(make, residual, x):
    # thresholds between the members' least values: some stop early, in the middle of the batch
    minimize = make(steps=8)
    least, start = minimize(residual, x).value, value_of(residual, x)
    recorder = Recorder(residual)
    threshold = torch.sqrt((least * start).clamp_min(1e-12)).median().item()
    together = minimize(recorder, x, threshold=threshold)
    sizes = [len(iterate) for iterate in recorder.iterates]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) > 1
    for i in range(len(x)):
        alone = minimize(residual, x[i : i + 1], threshold=threshold)
        assert_same(rows(together, slice(i, i + 1)), alone)


@minimizer_of_all
def test_states_stay_with_their_members_as_others_stop(make):
    # members solve r = a (x - b) for a known b, and start ever further from it: they stop in
    # order, the first first, so that a state which is not cut along would shift to others
    def residual(x):
        r = torch.stack((x[:, 0] - 1, 2 * (x[:, 1] + 1)), dim=1)
        return r + 0.3 * r**3, estimate(x)

    x = double([1.0, -1.0]) + double([[0.02], [0.3], [1.0], [2.0]]) * double([1.0, 0.4])
    recorder = Recorder(residual)
    minimize, threshold = make(steps=10), 0.05
    together = minimize(recorder, x, threshold=threshold)
    assert len(recorder.iterates[0]) == 4
    assert len(recorder.iterates[1]) == 3
    for i in range(4):
        alone = minimize(residual, x[i : i + 1], threshold=threshold)
        assert_same(rows(together, slice(i, i + 1)), alone)


@minimizer_of_all
@given(seed=st.integers(0, 2**16), scale=st.floats(-2, 1).map(lambda e: 10**e))
@check
def test_the_best_iterate_is_never_worse_than_the_start(make, seed, scale):
    x = scale * normal(8, 2, seed=seed)
    minimum = make(steps=5)(rosenbrock, x)
    assert (minimum.value <= value_of(rosenbrock, x)).all()


@minimizer_of_all
@problem_of_all
def test_the_best_iterate_is_the_best_of_those_evaluated(make, residual, x):
    recorder = Recorder(residual)
    minimum = make(steps=6)(recorder, x[:1])
    values = torch.cat([value_of(residual, iterate) for iterate in recorder.iterates])
    best = values.argmin()
    torch.testing.assert_close(minimum.value[0], values[best], rtol=1e-12, atol=0)
    assert torch.equal(minimum.x, recorder.iterates[best])


@minimizer_of_all
@problem_of_all
def test_estimate_and_value_belong_to_the_returned_iterate(make, residual, x):
    minimum = make(steps=6)(residual, x)
    torch.testing.assert_close(minimum.x_0, estimate(minimum.x))
    torch.testing.assert_close(minimum.value, value_of(residual, minimum.x))


@minimizer_of_all
# not rosenbrock, on which gradient descent needs a smaller rate
@pytest.mark.parametrize("name", ["mild", "matrices", "many residuals"])
def test_it_makes_progress(make, name):
    residual, x = PROBLEMS[name]
    minimum = make(steps=10)(residual, x)
    assert (minimum.value < value_of(residual, x)).all()


@minimizer_of_all
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_it_evaluates_once_more_than_it_steps_where_nothing_converges(make, steps):
    recorder = Recorder(unreachable)
    make(steps=steps)(recorder, double([[0.3], [-2.0], [5.0]]))
    assert [len(iterate) for iterate in recorder.iterates] == [3] * (steps + 1)


@minimizer_of_all
@problem_of_all
def test_it_never_evaluates_more_often_than_promised(make, residual, x):
    recorder = Recorder(residual)
    make(steps=4)(recorder, x, threshold=1e-3)
    assert len(recorder.iterates) <= 5


@minimizer_of_all
def test_a_member_at_the_threshold_is_not_evaluated_again(make):
    x = double([[3.0, 3.0], [1.0, 1.0], [1.0, 1.001], [2.0, 0.0]])
    recorder = Recorder(rosenbrock)
    # the second member is a solution and the third has a value of 1e-4
    minimum = make(steps=3)(recorder, x, threshold=1.001e-4)
    assert [len(iterate) for iterate in recorder.iterates[:2]] == [4, 2]
    assert torch.equal(minimum.x[1:3], x[1:3])
    assert torch.equal(minimum.x_0[1:3], estimate(x[1:3]))


@minimizer_of_all
def test_a_solved_problem_costs_one_evaluation(make):
    recorder = Recorder(rosenbrock)
    minimum = make(steps=3)(recorder, double([[1.0, 1.0], [1.0, 1.0]]))
    assert len(recorder.iterates) == 1
    assert (minimum.value == 0).all()


@minimizer_of_all
@problem_of_all
@pytest.mark.parametrize("unit", [1.0, 0.25])
def test_no_iteration_is_longer_than_the_cap(make, residual, x, unit):
    recorder = Recorder(residual)
    make(steps=8, max_step=0.2, max_distance=None)(recorder, x[:1], unit=unit)
    path = torch.cat(recorder.iterates).flatten(start_dim=1)
    lengths = path.diff(dim=0).norm(dim=1)
    assert lengths.max() <= 0.2 * unit * (1 + 1e-12)
    assert lengths.max() > 0


@minimizer_of_all
@problem_of_all
@pytest.mark.parametrize("unit", [1.0, 0.25])
def test_no_member_gets_further_from_its_start_than_the_bound(make, residual, x, unit):
    for i in range(len(x)):
        recorder = Recorder(residual)
        make(steps=8, max_distance=0.1)(recorder, x[i : i + 1], unit=unit)
        path = torch.cat(recorder.iterates).flatten(start_dim=1)
        assert (path - path[0]).norm(dim=1).max() <= 0.1 * unit * (1 + 1e-12)


@minimizer_of_all
@problem_of_all
def test_both_bounds_hold_together(make, residual, x):
    recorder = Recorder(residual)
    make(steps=8, max_step=0.04, max_distance=0.1)(recorder, x[:1])
    path = torch.cat(recorder.iterates).flatten(start_dim=1)
    assert path.diff(dim=0).norm(dim=1).max() <= 0.04 * (1 + 1e-12)
    assert (path - path[0]).norm(dim=1).max() <= 0.1 * (1 + 1e-12)


def broken_beyond(residual, limit=50.0):
    """The residual, not finite for a member that is further out than the limit."""

    def broken(x):
        r, x_0 = residual(x)
        far = x.flatten(start_dim=1).norm(dim=1) > limit
        return torch.where(far[:, None], torch.nan, r), x_0

    return broken


@minimizer_of_all
@problem_of_all
def test_a_member_whose_residual_is_not_a_number_keeps_its_start(make, residual, x):
    bad = x.clone()
    bad[2] = 100.0
    minimum = make(steps=6)(broken_beyond(residual), bad)
    assert torch.equal(minimum.x[2], bad[2])
    assert not minimum.value[2] < torch.inf
    others = torch.tensor([0, 1, 3, 4, 5])
    assert_same(rows(minimum, others), make(steps=6)(residual, x[others]))


@minimizer_of_all
def test_a_member_that_walks_into_an_infinite_residual_keeps_its_best(make):
    # the third coordinate has no say, and tells the first member from the second
    x = double([[2.0, 2.0, 1000.0], [0.5, 0.5, 0.0]])

    def residual(y):
        r, x_0 = rosenbrock(y)
        moved = (y[:, :2] - x[0, :2]).norm(dim=1) > 1e-9
        return torch.where((moved & (y[:, 2] > 500))[:, None], torch.inf, r), x_0

    recorder = Recorder(residual)
    minimum = make(steps=6)(recorder, x)
    assert residual(recorder.iterates[1][:1])[0].isinf().all()
    torch.testing.assert_close(minimum.x[0, :2], x[0, :2], rtol=0, atol=1e-9)
    assert minimum.value[0].isfinite()
    assert_same(rows(minimum, slice(1, 2)), make(steps=6)(residual, x[1:]))


@minimizer_of_all
def test_a_member_whose_gradient_is_not_finite_disturbs_no_other(make):
    def residual(x):
        # at zero: a value of one, and a gradient of the square root which is infinite
        r = torch.stack((1 + x[:, 0].abs().sqrt(), x[:, 1] - x[:, 0]), dim=1)
        return r, estimate(x)

    x = double([[0.7, 0.2], [0.0, 0.0], [-0.5, 1.0]])
    recorder = Recorder(residual)
    minimum = make(steps=4)(recorder, x)
    assert all(iterate.isfinite().all() for iterate in recorder.iterates)
    assert minimum.value[1] == 1
    others = torch.tensor([0, 2])
    assert_same(rows(minimum, others), make(steps=4)(residual, x[others]))


@minimizer_of_all
@problem_of_all
def test_inputs_are_not_modified(make, residual, x):
    start = x.clone()
    make(steps=4)(residual, start, threshold=1e-3)
    assert torch.equal(start, x)
    assert not start.requires_grad


@minimizer_of_all
def test_results_carry_no_graph(make):
    for x in (normal(3, 2), normal(3, 2).requires_grad_()):
        minimum = make(steps=3)(rosenbrock, x)
        assert not any(part.requires_grad for part in minimum)


@minimizer_of_all
@problem_of_all
def test_it_works_where_gradients_are_switched_off(make, residual, x):
    expected = make(steps=3)(residual, x)
    with torch.no_grad():
        assert_same(make(steps=3)(residual, x), expected)


@minimizer_of_all
def test_it_keeps_nothing_from_one_call_to_the_next(make):
    minimize, (residual, x) = make(steps=5), PROBLEMS["mild"]
    first = minimize(residual, x)
    minimize(rosenbrock, normal(3, 2))
    assert_same(minimize(residual, x), first, atol=0)
    with pytest.raises(FrozenInstanceError):
        minimize.steps = 3


@minimizer_of_all
@problem_of_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_results_have_the_shape_and_dtype_of_the_start(make, residual, x, dtype):
    minimum = make(steps=3)(residual, x.to(dtype))
    assert minimum.x.shape == minimum.x_0.shape == x.shape
    assert minimum.value.shape == (len(x),)
    assert minimum.x.dtype == minimum.x_0.dtype == minimum.value.dtype == dtype


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 0},
        {"steps": -1},
        {"max_step": 0.0},
        {"max_step": -1.0},
        {"max_step": float("nan")},
        {"max_distance": 0.0},
        {"max_distance": -0.5},
    ],
    ids=lambda arguments: "{}={}".format(*next(iter(arguments.items()))),
)
def test_bad_arguments_are_refused_by_name(kind, arguments):
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=rf"^{kind.__name__}\({name}=\.\.\.\) must be"):
        kind(**arguments)
