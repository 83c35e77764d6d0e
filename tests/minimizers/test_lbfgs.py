"""L-BFGS: its directions, its line search, and which pairs (s, y) it keeps."""

from itertools import pairwise, product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from feasibly.minimizers import LBFGS, SGD, GaussNewton, WarmLBFGS
from feasibly.minimizers.base import Search
from tests.tensors import double, normal


def rosenbrock(x):
    return torch.stack((10 * (x[:, 1] - x[:, 0] ** 2), 1 - x[:, 0]), dim=1)


def wells(x):
    """Many local minima and regions of negative curvature."""
    return torch.stack((x[:, 0] + 2 * torch.sin(3 * x[:, 1]), x[:, 1] - torch.cos(2 * x[:, 0])), 1)


def plateau(x):
    """Flat far out, where the value is concave."""
    return torch.stack((torch.tanh(x[:, 0] - 0.3), torch.tanh(x[:, 1] + x[:, 0] / 2)), dim=1)


def stuck(x):
    """At least one, whatever the point; the rest is met in a step or two."""
    return torch.stack((x[:, 0] - 0.3, torch.ones_like(x[:, 0])), dim=1)


PROBLEMS = {"rosenbrock": rosenbrock, "wells": wells, "plateau": plateau}
STARTS = double([[-1.2, 1.0], [2.0, -1.0], [0.3, 1.4], [-0.7, -2.0]])


class Recorder:
    """A residual of one member that remembers iterates, values, gradients and their number."""

    def __init__(self, residual):
        self.residual, self.x, self.f, self.g = residual, [], [], []
        self.gradients = 0

    def __call__(self, x):
        with torch.enable_grad():
            probe = x.detach().requires_grad_()
            f = self.residual(probe).square().sum(dim=1)
            self.g.append(torch.autograd.grad(f.sum(), probe)[0][0])
        self.x.append(x.detach()[0].clone())
        self.f.append(f.item())
        inner = x
        if x.requires_grad:
            inner = x.view_as(x)
            inner.register_hook(self.count)
        return self.residual(inner), x

    def count(self, _):
        self.gradients += 1


@pytest.mark.parametrize("max_step", [None, 0.5])
def test_rosenbrock_is_solved_within_sixty_evaluations(max_step):
    minimum = LBFGS(steps=59, max_step=max_step)(
        lambda x: (rosenbrock(x), x), STARTS, threshold=1e-8
    )
    assert (minimum.value <= 1e-8).all()
    torch.testing.assert_close(minimum.x, torch.ones_like(STARTS), rtol=0, atol=1e-3)


def inverse_times(g, f, pairs):
    """Minus the BFGS direction by dense updates of the inverse Hessian, from the scaled
    identity."""
    identity = torch.eye(len(g)).double()
    H = 2 * f / (g @ g) * identity
    for s, y in pairs:
        H = (s @ y) / (y @ y) * identity  # from the latest pair
    for s, y in pairs:
        rho = 1 / (s @ y)
        V = identity - rho * torch.outer(y, s)
        H = V.T @ H @ V + rho * torch.outer(s, s)
    return H @ g


@pytest.mark.parametrize("memory", [1, 3, 20])
def test_directions_are_those_of_the_dense_recursion(memory):
    skipped, ups = 0, 0
    for residual, start in product(PROBLEMS.values(), STARTS):
        s, u = check_directions(residual, start, memory)
        skipped, ups = skipped + s, ups + u
    # some pairs have negative curvature, and some steps go up, as without a line search they may
    assert skipped > 0
    assert ups > 0


def check_directions(residual, start, memory):
    recorder = Recorder(residual)
    LBFGS(steps=10, max_step=0.7, memory=memory, line_search=False)(recorder, start[None])
    pairs, skipped = [], 0
    for k in range(10):
        x, f, g = recorder.x[k], recorder.f[k], recorder.g[k]
        if k:
            s, y = x - recorder.x[k - 1], g - recorder.g[k - 1]
            if s @ y > 1e-10 * s.norm() * y.norm():
                pairs = [*pairs, (s, y)][-memory:]
            else:
                skipped += 1
        step = inverse_times(g, f, pairs)
        step = step * min(1.0, 0.7 / step.norm().item())
        torch.testing.assert_close(recorder.x[k + 1], x - step, rtol=1e-6, atol=1e-6)
    f = torch.tensor(recorder.f)
    return skipped, int((f.diff() > 0).sum())


@pytest.mark.parametrize("max_step", [None, 0.7])
def test_a_trial_that_does_not_descend_is_halved_towards_the_last_accepted(max_step):
    halved = [check_halving(f, start, max_step) for f, start in product(PROBLEMS.values(), STARTS)]
    assert sum(halved) > 0


def check_halving(residual, start, max_step):
    recorder = Recorder(residual)
    LBFGS(steps=25, max_step=max_step)(recorder, start[None])
    accepted = [0]
    for k in range(1, len(recorder.x) - 1):
        last = accepted[-1]
        step = recorder.x[k] - recorder.x[last]
        if recorder.f[k] <= recorder.f[last] + 1e-4 * (step @ recorder.g[last]):
            accepted.append(k)
        else:
            middle = recorder.x[last] + step / 2
            torch.testing.assert_close(recorder.x[k + 1], middle, rtol=1e-9, atol=1e-12)
    values = [recorder.f[k] for k in accepted]
    assert len(values) > 3
    # an accepted iterate is never worse than the one before
    assert all(later <= earlier for earlier, later in pairwise(values))
    return len(recorder.x) - 1 - len(accepted)


@pytest.mark.parametrize("line_search", [True, False], ids=["line search", "no line search"])
def test_a_gradient_is_taken_once_a_step_and_not_for_the_last_value(line_search):
    recorder = Recorder(lambda x: x.square() + 1)  # which has no zero
    LBFGS(steps=5, line_search=line_search)(recorder, STARTS[:1])
    assert recorder.gradients == 5
    assert len(recorder.x) == 6


def test_a_trial_that_is_not_finite_is_halved_as_well():
    def residual(x):
        r = rosenbrock(x)
        return torch.where((x[:, :1] - STARTS[0, 0]).abs() > 0.02, torch.nan, r)

    recorder = Recorder(residual)
    minimum = LBFGS(steps=20)(recorder, STARTS[:1])
    assert torch.tensor(recorder.f).isnan().any()
    # a first step of 0.5 has to be halved until it is allowed, and then the search goes on
    assert minimum.value.item() < 0.9 * recorder.f[0]


def valley(x):
    """Residuals whose Hessian is the same everywhere."""
    scales = torch.logspace(0, 1, x.shape[1], dtype=x.dtype)
    return scales * x


def test_a_warm_search_begins_with_the_pairs_of_the_last_one():
    minimize = WarmLBFGS(steps=4, max_step=None)
    first, second = Recorder(valley), Recorder(valley)
    start = normal(1, 5)
    state = minimize(first, start, state=minimize.init(start)).state
    minimize(second, -start.flip(1), state=state)
    pairs = [
        (b - a, h - g)
        for (a, b), (g, h) in zip(pairwise(first.x[:4]), pairwise(first.g[:4]), strict=True)
    ]
    step = inverse_times(second.g[0], second.f[0], pairs)
    torch.testing.assert_close(second.x[1], second.x[0] - step)
    polyak = 2 * second.f[0] * second.g[0] / second.g[0].square().sum()
    assert not torch.allclose(second.x[1], second.x[0] - polyak)


def test_a_warm_search_without_a_predecessor_is_a_cold_one():
    cold, warm = (m(steps=6, memory=5) for m in (LBFGS, WarmLBFGS))
    search = [m(lambda x: (rosenbrock(x), x), STARTS) for m in (cold, warm)]
    assert torch.equal(search[0].x, search[1].x)
    assert cold.init(STARTS) is None


def test_the_order_of_pairs_is_kept_as_places_are_used_again():
    history, pairs = WarmLBFGS(memory=3).init(torch.zeros(2, 4).double()), []
    row = torch.tensor([0])
    history.append(torch.tensor([1]), normal(1, 4), normal(1, 4))  # not in step with the other
    for k in range(5):
        s = normal(4, seed=k)
        y = s + 0.5 * s.flip(0).abs() * s.sign()
        pairs.append((s, y))
        history.append(row, s[None], y[None])
    g, f = normal(4, seed=9), double(0.7)
    expected = inverse_times(g, f, pairs[-3:])
    torch.testing.assert_close(history.inverse_times(g[None], f[None], row)[0], expected)
    both = history.inverse_times(g.expand(2, -1), f.expand(2), torch.tensor([0, 1]))
    torch.testing.assert_close(both[0], expected)


@pytest.mark.parametrize("pair_type", ["bfloat16", "float32"])
def test_pairs_of_a_coarse_type_still_lead_to_the_minimum(pair_type):
    def residual(x):
        return rosenbrock(x), x

    found = LBFGS(steps=80, pair_type=pair_type)(residual, STARTS)
    assert (found.value < 1e-8).all()
    # and the type is the one that is used
    exact = LBFGS(steps=5)(residual, STARTS).x
    coarse = LBFGS(steps=5, pair_type=pair_type)(residual, STARTS).x
    assert not torch.equal(coarse, exact)


def test_pairs_on_the_host_are_the_same_ones():
    here, host = (WarmLBFGS(steps=9, pairs_on_host=flag) for flag in (False, True))
    search = [m(lambda x: (wells(x), x), STARTS, state=m.init(STARTS)) for m in (here, host)]
    assert torch.equal(search[0].x, search[1].x)


def test_pairs_are_kept_where_and_as_they_are_asked_for():
    x = torch.zeros(2, 3, device="meta")
    kept = WarmLBFGS(pair_type="bfloat16", pairs_on_host=True).init(x)
    assert (kept.s.device.type, kept.s.dtype) == ("cpu", torch.bfloat16)
    assert (kept.rho.device.type, kept.rho.dtype) == ("meta", torch.float32)
    kept = WarmLBFGS().init(x)
    assert (kept.s.device.type, kept.s.dtype) == ("meta", torch.float32)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made, besides those that there are."""

    def __init__(self, *known):
        super().__init__()
        self.size, self.known = 0, {id(tensor) for tensor in known}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and id(made) not in self.known:
            self.size = max(self.size, made.numel())
        return made


def test_a_search_never_reads_all_pairs_at_once():
    minimize, x = WarmLBFGS(steps=12, memory=10, max_step=None), normal(2, 50)
    history = minimize.init(x)
    with Largest(history.s, history.y) as largest:
        minimize.descend(Search(lambda x: (valley(x), x), x, 0.0, None), None, history)
    assert (history.rho != 0).all()
    assert largest.size == x.numel()


def test_only_a_type_that_holds_a_gradient_is_taken():
    with pytest.raises(ValueError, match="float16 has too small a range"):
        LBFGS(pair_type="float16")


def test_a_minimizer_is_shown_as_ever_unless_pairs_are_kept_otherwise():
    assert repr(WarmLBFGS()) == (
        "WarmLBFGS(steps=8, max_step=0.5, max_distance=None, memory=12, line_search=True)"
    )
    assert "pair_type='bfloat16'" in repr(LBFGS(pair_type="bfloat16"))
    assert eval(repr(LBFGS(pairs_on_host=True))) == LBFGS(pairs_on_host=True)


@pytest.mark.parametrize(
    "minimize", [LBFGS(40, None), GaussNewton(40, max_distance=None), SGD(40, lr=0.1)], ids=repr
)
def test_a_member_that_has_enough_stops_where_it_gains_no_more_and_others_go_on(minimize):
    asked = []

    def residual(x):
        asked.append(len(x))
        return stuck(x), x

    x = double([[5.0, 0.0], [0.3, 0.0], [9.0, 0.0]])
    found = {enough: minimize(residual, x, enough=enough).value for enough in (0.0, 0.5, 2.0)}
    all_the_way, beyond, soon = asked[:41], asked[41:82], asked[82:]
    assert all_the_way == beyond == [3] * 41, "none has enough: its least objective is one"
    assert soon[:3] == [3, 3, 2], "the second begins at the minimum"
    assert len(soon) < 20
    assert (found[2.0] < 2.0).all()
    torch.testing.assert_close(found[2.0][1], found[0.0][1])


def test_no_member_stops_because_another_has_enough():
    """What cannot be met is each member's own: one of them ends at 1, the other at 4."""
    asked = []

    def residual(x):
        asked.append(len(x))
        return torch.stack((x[:, 0], x[:, 1].detach()), dim=1), x

    LBFGS(40, None)(residual, double([[5.0, 1.0], [5.0, 2.0]]), enough=2.0)
    assert asked[0] == 2
    assert asked[-1] == 1
    assert len(asked) == 41, "the other goes on to the end"


def test_a_trial_that_is_worse_is_not_the_end():
    """At this start the line search must halve its first step, which lands beyond the minimum."""
    value = LBFGS(40, None)(
        lambda x: (torch.tanh(x) * (1 + x.square()), x), double([[0.9]]), 1e-12, enough=10.0
    ).value
    assert value.item() < 1e-12


SLOPE = 3.0


class Recorded:
    """The residual atan(3 x), from afar, where a Newton step overshoots; notes every point."""

    def __init__(self):
        self.points = []

    def __call__(self, x):
        self.points.append(x.detach().clone())
        return torch.atan(SLOPE * x), x


def value(x):
    return torch.atan(SLOPE * x) ** 2


def gradient(x):
    return 2 * torch.atan(SLOPE * x) * SLOPE / (1 + (SLOPE * x) ** 2)


def search(start, steps):
    """Searches from numbers, one a member, with an empty history; returns points and history."""
    residual, x = Recorded(), torch.tensor(start, dtype=torch.float64)[:, None]
    minimize = WarmLBFGS(steps=steps, max_step=None)
    found = minimize(residual, x, state=minimize.init(x))
    return [p[:, 0] for p in residual.points], found.state


def test_pairs_are_the_differences_of_the_accepted_iterates():
    """Armijo's condition, tried here on the points that the search asked for."""
    points, history = search([2.0], steps=10)
    accepted, pairs = points[0], []
    for trial in points[1:-1]:  # after the last there is no gradient
        if value(trial) <= value(accepted) + 1e-4 * gradient(accepted) * (trial - accepted):
            pairs.append((trial - accepted, gradient(trial) - gradient(accepted)))
            accepted = trial
    assert 0 < len(pairs) < len(points) - 2, "some are rejected"
    assert history.count.item() == len(pairs)
    for k, (s, y) in enumerate(pairs):
        assert history.s[k, 0, 0].item() == pytest.approx(s.item())
        assert history.y[k, 0, 0].item() == pytest.approx(y.item())
        assert history.rho[k, 0].item() == pytest.approx(1 / (s * y).item())


def test_a_member_that_stops_keeps_the_same_pairs_whether_or_not_others_go_on():
    def residual(x):
        return torch.stack([x[:, 0] ** 3 - 0.2, x[:, 1] - x[:, 0]], dim=1), x

    x = torch.tensor([[0.6, 0.3], [3.0, -4.0]], dtype=torch.float64)
    minimize = WarmLBFGS(steps=8)
    both = minimize(residual, x, 1e-2, state=minimize.init(x)).state
    alone = minimize(residual, x[:1], 1e-2, state=minimize.init(x[:1])).state
    assert both.count[0] == alone.count[0]
    assert both.count[1] > both.count[0]
    torch.testing.assert_close(both.s[:, 0], alone.s[:, 0], rtol=0, atol=1e-12)
