import pytest
import torch

from feasibly import priors
from feasibly.constraints import LevelSet
from feasibly.oracles import Checkerboard
from feasibly.problems.data2d import CONSTRAINTS, DISTRIBUTIONS, Data2D, Lines
from feasibly.samplers import Ancestral
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled

REACH = 0.1 + 1e-6  # what `ground_truth` promises
PROBLEMS = {name: Data2D(name) for name in DISTRIBUTIONS}
each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())


def draw(problem, n, seed=0):
    """Samples of the data's own distribution, for which the trained prior stands: they cost no
    network evaluations."""
    return problem.distribution.sample(n, torch.Generator().manual_seed(seed)).float()


def test_constraint_k_is_the_same_for_every_problem_and_call():
    x = draw(PROBLEMS["banana"], 32)
    for k in range(CONSTRAINTS):
        first, second = (problem.constraint(k) for problem in PROBLEMS.values())
        assert isinstance(first, LevelSet)
        assert torch.equal(first.residual(x), second.residual(x))


def test_constraints_differ_from_one_another():
    problem = PROBLEMS["banana"]
    x = draw(problem, 256)
    values = torch.stack([problem.constraint(k).residual(x)[:, 0] for k in range(CONSTRAINTS)])
    # independent fields with a lengthscale of 0.25: correlations of some tenths, by chance
    correlation = torch.corrcoef(values) - torch.eye(CONSTRAINTS)
    assert correlation.abs().max() < 0.7


def test_an_unknown_problem_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'moons'.*banana.*checkerboard"):
        Data2D("moons")


def test_a_problem_takes_the_shipped_prior_or_another():
    oracle = Checkerboard(4, LogLogit())
    assert Data2D("checkerboard", oracle).denoiser is oracle
    x, t = torch.ones(1, 2), torch.tensor(0.5)
    shipped = priors.load("banana")
    assert torch.equal(Data2D("banana").denoiser(x, t).mean, shipped(x, t).mean)


def test_prior_samples_are_unconditional_samples_drawn_once():
    problem = Data2D("banana")
    x = problem.prior_samples(8)
    assert problem.prior_samples(8) is x
    again = sampled(on(Ancestral(steps=128), problem.denoiser), 8, (2,), seed=2**20).samples
    assert torch.equal(x, again)


def strays(truth, kept):
    """Counts the points of the truth that are no point of `kept`, moved by at most `REACH`. Both
    are in one order, so that a point is looked for behind the last one found."""
    found, last = 0, 0
    for x in truth:
        near = ((kept[last:] - x).norm(dim=1) <= REACH).nonzero()
        if len(near):
            found, last = found + 1, last + near[0].item() + 1
    return len(truth) - found


@each_problem
def test_ground_truth_is_made_of_nearly_feasible_samples_moved_onto_the_constraint(problem):
    pool = draw(problem, 8192)
    for k in range(0, CONSTRAINTS, 3):
        constraint = problem.constraint(k)
        truth = problem.ground_truth(constraint, pool)
        assert len(truth) > 100
        assert truth.dtype == torch.float64
        assert constraint.f(truth).abs().max() <= 1e-8
        kept = pool[constraint.violation(pool) <= 1e-2].double()
        assert 0.9 * len(kept) <= len(truth) <= len(kept)
        assert strays(truth, kept) == 0


def test_ground_truth_of_a_line_is_the_orthogonal_projection_of_the_tube():
    problem, pool = PROBLEMS["banana"], draw(PROBLEMS["banana"], 2048)
    line = LevelSet(lambda x: 2 * x[:, 0] - 0.5)
    truth = problem.ground_truth(line, pool)
    # c = 1 - exp(-f^2) <= 1e-2 is |f| <= 0.10025
    kept = pool[(2 * pool[:, 0] - 0.5).abs() <= 0.10025].double()
    expected = torch.stack((torch.full((len(kept),), 0.25).double(), kept[:, 1]), dim=1)
    torch.testing.assert_close(truth, expected, rtol=0, atol=1e-9)


@each_problem
def test_shares_count_members_on_the_support_feasible_and_both(problem):
    x = problem.distribution.sample(64, torch.Generator().manual_seed(0)).float()
    x = x[problem.distribution.in_support(x)][:40]
    x[:10] = 100.0
    x[10:20] = torch.nan
    feasible = torch.arange(40) % 2 == 0
    scores = problem.scores(x, feasible, draw(problem, 64, seed=1))
    assert scores["feasible"] == 0.5
    assert scores["on_manifold"] == 0.5
    assert scores["joint"] == 0.25


@each_problem
def test_scores_name_the_neighbours_of_each_rate(problem):
    x, truth = draw(problem, 32), draw(problem, 32, seed=1) + 0.3
    scores = problem.scores(x, torch.ones(32).bool(), truth)
    union = torch.cat((truth, x)).double()
    order = torch.cdist(union, union).argsort(dim=1)[:, 1:]
    is_truth = torch.arange(64) < 32
    crosses = is_truth[order] != is_truth[:, None]
    for key, k in {"knn": 5, "knn_1": 1, "knn_3": 3, "knn_10": 10, "knn_20": 20}.items():
        assert scores[key] == pytest.approx(crosses[:, :k].double().mean().item())


def test_missing_modes_cost_their_weight():
    problem = PROBLEMS["checkerboard"]
    # one point in each of eight squares, against one point in two of them
    truth = (problem.distribution.squares + 0.5 - problem.distribution.mean).div(
        problem.distribution.std
    )
    scores = problem.scores(truth[:2].repeat(8, 1), torch.ones(16).bool(), truth.repeat(2, 1))
    assert scores["weight_error"] == pytest.approx(0.75)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_line_passes_through_the_data_and_has_a_truth(name):
    problem = Lines(name)
    pool = draw(problem, 8192)
    for k in range(CONSTRAINTS):
        line = problem.constraint(k)
        assert line.A.norm() == pytest.approx(1)
        assert line.y.abs() < 3
        assert torch.equal(line.A, Lines(name).constraint(k).A)
        truth = problem.ground_truth(line, pool)
        assert len(truth) > 200  # of a band of a tenth on either side
        assert line.is_feasible(truth).all()
        assert problem.distribution.in_support(truth).float().mean() > 0.7
