"""What every minimizer promises, whatever its method."""

import copy
import inspect
import math
import pkgutil
from dataclasses import FrozenInstanceError
from functools import partial
from importlib import import_module

import pytest
import torch

from feasibly import minimizers
from feasibly.derivatives import Jacobian
from feasibly.minimizers import LBFGS, GaussNewton, Minimizer
from tests.tensors import double, normal


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


def estimate(x):
    """A clean estimate that can be told from its iterate."""
    return torch.sin(x) + 2


def rosenbrock(x):
    return torch.stack((10 * (x[:, 1] - x[:, 0] ** 2), 1 - x[:, 0]), dim=1), estimate(x)


def mild(x):
    """Two smooth residuals of samples of any shape, whose least value is zero."""
    v = x.flatten(start_dim=1)
    ramp = torch.linspace(0.2, 1, v.shape[1]).to(x)
    r = torch.stack((v @ ramp + torch.sin(v[:, 0]) / 4 - 0.3, v[:, 0] - v[:, 1] ** 2 / 4), dim=1)
    return r, estimate(x)


def many(x):
    """Twelve residuals, more than Gauss-Newton solves densely."""
    v = x @ MIX.to(x)
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


class Recorder:
    """A residual that remembers the iterates at which it was evaluated."""

    products = False  # which evaluate it as well, near an iterate

    def __init__(self, residual):
        self.residual, self.iterates = residual, []

    def __call__(self, x):
        if not Recorder.products:
            self.iterates.append(x.detach().clone())
        return self.residual(x)


@pytest.fixture(autouse=True)
def products_are_no_iterates(monkeypatch):
    product = Jacobian.__call__

    def apart(self, v):
        monkeypatch.setattr(Recorder, "products", True)
        found = product(self, v)
        monkeypatch.setattr(Recorder, "products", False)
        return found

    monkeypatch.setattr(Jacobian, "__call__", apart)


def value_of(residual, x):
    return residual(x)[0].square().sum(dim=1)


def assert_same(one, other, atol=1e-10):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=atol, equal_nan=True)


def rows(minimum, i):
    return tuple(part[i] for part in minimum[:3])


@minimizer_of_all
def test_a_member_ends_up_the_same_alone_as_in_any_batch(make):
    minimize = make(steps=6)
    for residual, x in PROBLEMS.values():
        together = minimize(residual, x)
        for chosen in ([0], [4, 1, 5]):
            assert_same(rows(together, chosen), minimize(residual, x[chosen])[:3])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@minimizer_of_all
def test_iterates_on_a_gpu_are_those_of_the_cpu(make):
    for residual, x in PROBLEMS.values():
        there = make(steps=6)(residual, x.cuda())
        assert all(part.is_cuda for part in there[:3])
        assert_same([part.cpu() for part in there[:3]], make(steps=6)(residual, x)[:3], atol=1e-6)


@minimizer_of_all
def test_members_that_rest_do_not_disturb_those_that_search(make):
    # members solve r = a (x - b) for a known b, and start ever further from it: they stop in
    # order, the first first, so that a state which is not cut along would shift to others
    def residual(x):
        r = torch.stack((x[:, 0] - 1, 2 * (x[:, 1] + 1)), dim=1)
        return r + 0.3 * r**3, estimate(x)

    x = double([1.0, -1.0]) + double([[0.02], [0.3], [1.0], [2.0]]) * double([1.0, 0.4])
    recorder = Recorder(residual)
    minimize, threshold = make(steps=10), 0.05
    together = minimize(recorder, x, threshold=threshold)
    sizes = [len(iterate) for iterate in recorder.iterates]
    assert sizes[:2] == [4, 3]
    assert sizes == sorted(sizes, reverse=True)
    for i in range(4):
        alone = minimize(residual, x[i : i + 1], threshold=threshold)
        assert_same(rows(together, [i]), alone[:3])


@minimizer_of_all
def test_the_best_iterate_is_the_best_of_those_evaluated_with_its_estimate_and_value(make):
    for residual, x in PROBLEMS.values():
        recorder = Recorder(residual)
        minimum = make(steps=6)(recorder, x[:1])
        values = torch.cat([value_of(residual, iterate) for iterate in recorder.iterates])
        best = values.argmin()
        torch.testing.assert_close(minimum.value[0], values[best], rtol=1e-12, atol=0)
        assert torch.equal(minimum.x, recorder.iterates[best])
        torch.testing.assert_close(minimum.x_0, estimate(minimum.x))


@minimizer_of_all
def test_it_makes_progress(make):
    # not on rosenbrock, on which gradient descent needs a smaller rate
    for name in ("matrices", "many residuals"):
        residual, x = PROBLEMS[name]
        minimum = make(steps=10)(residual, x)
        assert (minimum.value < value_of(residual, x)).all()


@minimizer_of_all
def test_it_evaluates_once_more_than_it_steps_where_nothing_converges(make):
    for steps in (1, 5):
        recorder = Recorder(unreachable)
        make(steps=steps)(recorder, double([[0.3], [-2.0], [5.0]]))
        assert [len(iterate) for iterate in recorder.iterates] == [3] * (steps + 1)


@minimizer_of_all
def test_a_member_at_the_threshold_is_not_evaluated_again(make):
    x = double([[3.0, 3.0], [1.0, 1.0], [1.0, 1.001], [2.0, 0.0]])
    recorder = Recorder(rosenbrock)
    # the second member is a solution and the third has a value of 1e-4
    minimum = make(steps=3)(recorder, x, threshold=1.001e-4)
    assert [len(iterate) for iterate in recorder.iterates[:2]] == [4, 2]
    assert torch.equal(minimum.x[1:3], x[1:3])
    assert torch.equal(minimum.x_0[1:3], estimate(x[1:3]))

    solved = Recorder(rosenbrock)
    make(steps=3)(solved, x[1:3], threshold=1.001e-4)
    assert len(solved.iterates) == 1


@minimizer_of_all
def test_no_iteration_is_longer_and_no_member_gets_further_than_the_bounds(make):
    unit = 0.25
    for step, distance in ((0.2, None), (None, 0.1), (0.04, 0.1)):
        for name in ("rosenbrock", "many residuals"):
            residual, x = PROBLEMS[name]
            recorder = Recorder(residual)
            make(steps=6, max_step=step, max_distance=distance)(recorder, x[:1], unit=unit)
            path = torch.cat(recorder.iterates)
            lengths = path.diff(dim=0).norm(dim=1)
            assert 0 < lengths.max() <= (step or 1) * unit * (1 + 1e-12)
            if distance:
                assert (path - path[0]).norm(dim=1).max() <= distance * unit * (1 + 1e-12)


def broken_beyond(residual, limit=50.0):
    """The residual, not finite for a member that is further out than the limit."""

    def broken(x):
        r, x_0 = residual(x)
        far = x.flatten(start_dim=1).norm(dim=1) > limit
        return torch.where(far[:, None], torch.nan, r), x_0

    return broken


@minimizer_of_all
def test_a_member_whose_residual_is_not_a_number_keeps_its_start(make):
    others = [0, 1, 3, 4, 5]
    for name in ("matrices", "many residuals"):
        residual, x = PROBLEMS[name]
        bad = x.clone()
        bad[2] = 100.0
        minimum = make(steps=6)(broken_beyond(residual), bad)
        assert torch.equal(minimum.x[2], bad[2])
        assert not minimum.value[2] < torch.inf
        assert_same(rows(minimum, others), make(steps=6)(residual, x[others])[:3])


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
    assert_same(rows(minimum, [0, 2]), make(steps=4)(residual, x[[0, 2]])[:3])


@minimizer_of_all
def test_the_start_is_left_as_it_is_and_results_carry_no_graph(make):
    for requires_grad in (False, True):
        x = normal(3, 2).requires_grad_(requires_grad)
        minimum = make(steps=4)(rosenbrock, x, threshold=1e-3)
        assert torch.equal(x, normal(3, 2))
        assert x.requires_grad == requires_grad
        assert not any(part.requires_grad for part in minimum[:3])


@minimizer_of_all
def test_it_works_where_gradients_are_switched_off(make):
    for name in ("mild", "many residuals"):
        residual, x = PROBLEMS[name]
        expected = make(steps=3)(residual, x)[:3]
        with torch.no_grad():
            assert_same(make(steps=3)(residual, x)[:3], expected)


@minimizer_of_all
def test_it_keeps_nothing_from_one_call_to_the_next(make):
    minimize, (residual, x) = make(steps=5), PROBLEMS["mild"]
    first = minimize(residual, x)
    minimize(rosenbrock, normal(3, 2))
    assert_same(minimize(residual, x)[:3], first[:3], atol=0)
    assert first.state is None
    with pytest.raises(FrozenInstanceError):
        minimize.steps = 3


@minimizer_of_all
def test_a_given_state_is_left_as_it_is_and_leads_to_the_same_result_again(make):
    minimize, (residual, x) = make(steps=5), PROBLEMS["mild"]
    state = minimize(residual, x, state=minimize.init(x)).state  # with something in it
    before, y = copy.deepcopy(state), x.flip(0)
    first, again = (minimize(residual, y, state=state) for _ in range(2))
    assert content(state) == content(before)
    assert_same(first[:3], again[:3], atol=0)
    assert content(first.state) == content(again.state)


def content(state):
    return None if state is None else {k: v.tolist() for k, v in vars(state).items()}


@minimizer_of_all
def test_results_have_the_shape_and_dtype_of_the_start(make):
    for name in ("matrices", "many residuals"):
        residual, x = PROBLEMS[name]
        minimum = make(steps=3)(residual, x.float())
        assert minimum.x.shape == minimum.x_0.shape == x.shape
        assert minimum.value.shape == (len(x),)
        assert minimum.x.dtype == minimum.x_0.dtype == minimum.value.dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_bad_arguments_are_refused_by_name(kind):
    bad = (("steps", 0), ("max_step", 0.0), ("max_step", math.nan), ("max_distance", -0.5))
    for name, value in bad:
        with pytest.raises(ValueError, match=rf"^{kind.__name__}\({name}=\.\.\.\) must be"):
            kind(**{name: value})
    for name, least in kind.least.items():
        for value in (least - 1, math.nan)[: 2 if isinstance(getattr(kind, name), float) else 1]:
            with pytest.raises(ValueError, match=rf"^{kind.__name__}\({name}=.*at least"):
                kind(**{name: value})
