import math

import pytest
import torch

from feasibly.problems.distributions import Banana, Checkerboard

# Statistical tests allow six standard errors, a false-alarm rate of 2e-9 a number, unless they
# say otherwise; all are seeded.

N = 2**15
DISTRIBUTIONS = {
    "checkerboard": Checkerboard(),
    "checkerboard of 2": Checkerboard(m=2),
    "banana": Banana(),
}
distribution_of_all = pytest.mark.parametrize(
    "distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys()
)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def draw(distribution, n=N, seed=0):
    return distribution.sample(n, torch.Generator().manual_seed(seed))


@distribution_of_all
def test_samples_are_double_precision_rows_of_the_seed(distribution):
    x = draw(distribution, 100)
    assert x.shape == (100, 2)
    assert x.dtype == torch.float64
    assert torch.equal(draw(distribution, 100), x)
    assert not torch.isclose(draw(distribution, 100, seed=1), x).all()


@distribution_of_all
def test_samples_have_mean_zero_and_unit_variance(distribution):
    x = draw(distribution)
    assert x.mean(dim=0).abs().max() <= 6 / math.sqrt(N)
    # the error of a variance is sqrt((kurtosis - 1) / N), with the measured kurtosis
    error = ((x**4).mean(dim=0) - 1).sqrt() / math.sqrt(N)
    assert ((x.square().mean(dim=0) - 1).abs() <= 6 * error).all()


@pytest.mark.parametrize("m", [2, 4, 6])
def test_checkerboard_samples_lie_on_the_board(m):
    board = Checkerboard(m)
    x = draw(board)
    assert board.in_support(x).all()
    assert x.abs().max() <= math.sqrt(3)


def test_checkerboard_samples_are_uniform_over_its_squares():
    board = Checkerboard()
    counts = torch.bincount(board.mode(draw(board)), minlength=8)
    chi_square = ((counts - N / 8) ** 2 / (N / 8)).sum().item()
    # 48.4 is the 1 - 3e-8 quantile of chi-square with seven degrees of freedom
    assert chi_square <= 48.4


def test_checkerboard_samples_are_uniform_within_its_squares():
    board = Checkerboard()
    cell = ((draw(board) * board.std + board.mean).frac() * 4).long()
    counts = torch.bincount(4 * cell[:, 0] + cell[:, 1], minlength=16)
    chi_square = ((counts - N / 16) ** 2 / (N / 16)).sum().item()
    # 65.0 is the 1 - 3e-8 quantile of chi-square with fifteen degrees of freedom
    assert chi_square <= 65.0


def test_half_of_the_board_is_not_support():
    board = Checkerboard()
    line = torch.arange(4, dtype=torch.float64)
    centres = (torch.cartesian_prod(line, line) + 0.5 - board.mean) / board.std
    even = torch.cartesian_prod(line, line).sum(dim=1) % 2 == 0
    assert torch.equal(board.in_support(centres), even)


def test_the_mode_of_a_square_is_its_index():
    board = Checkerboard()
    centres = (board.squares + 0.5 - board.mean) / board.std
    assert board.mode(centres).tolist() == list(range(8))
    # and of a point outside the board that of the nearest square
    right = (double([[7.0, 1.4]]) - board.mean) / board.std
    assert board.squares[board.mode(right)].tolist() == [[3.0, 1.0]]


@pytest.mark.parametrize("m", [0, 1, 3, -2])
def test_a_board_with_an_odd_number_of_squares_is_refused(m):
    with pytest.raises(ValueError, match="must be even"):
        Checkerboard(m)


def test_the_banana_is_standardised_by_exact_moments():
    banana = Banana()
    # Gauss-Hermite: E[p(z)] is exact for polynomials, of which x_2 has degree four when squared
    node, weight = (double(a) for a in ([-math.sqrt(3), 0, math.sqrt(3)], [1 / 6, 2 / 3, 1 / 6]))
    first, second = torch.zeros(2).double(), torch.zeros(2).double()
    for mean in banana.means:
        for a, w_a in zip(node, weight, strict=True):
            for b, w_b in zip(node, weight, strict=True):
                z = mean + banana.stds * torch.stack((a, b))
                x = torch.stack((z[0], z[1] + 0.25 * z[0] ** 2 - banana.shift)) / banana.std
                first += w_a * w_b / 4 * x
                second += w_a * w_b / 4 * x**2
    torch.testing.assert_close(first, torch.zeros(2).double(), rtol=0, atol=1e-14)
    torch.testing.assert_close(second, torch.ones(2).double(), rtol=1e-14, atol=0)


def test_the_density_of_the_banana_is_that_of_its_components():
    banana = Banana()
    grid = torch.linspace(-8, 8, 501, dtype=torch.float64)
    cell = (grid[1] - grid[0]) ** 2
    p = banana.log_density(torch.cartesian_prod(grid, grid)).exp()
    # four normals of weight one, up to their constant 2 pi s_1 s_2, in standardised units
    s_1, s_2 = banana.stds.tolist()
    expected = 4 * 2 * math.pi * s_1 * s_2 / banana.std.prod().item()
    assert (p.sum() * cell).item() == pytest.approx(expected, rel=1e-9)


def test_the_support_of_the_banana_holds_all_but_a_thousandth():
    banana = Banana()
    n = 2**17
    share = banana.in_support(draw(banana, n, seed=1)).double().mean().item()
    # the threshold is itself a quantile of 2^18 samples, which adds to the variance
    error = math.sqrt(0.001 * 0.999 * (1 / n + 1 / 2**18))
    assert abs(share - 0.999) <= 6 * error


def component_means(banana):
    z_1, z_2 = banana.means.T
    # the shear by hand: E[z_1^2] = (9 + 1 + 1 + 9) / 4 + 0.25
    x_2 = z_2 + 0.25 * (z_1**2 - 5.25)
    return torch.stack((z_1, x_2), dim=1) / banana.std


def test_the_mode_of_a_component_mean_is_its_component():
    banana = Banana()
    means = component_means(banana)
    assert banana.mode(means).tolist() == [0, 1, 2, 3]
    assert banana.in_support(means).all()


def test_the_components_of_the_banana_have_equal_weight():
    banana = Banana()
    counts = torch.bincount(banana.mode(draw(banana)), minlength=4)
    # components of one covariance lose to a neighbour what they gain from it
    error = math.sqrt(0.25 * 0.75 / N)
    assert (counts / N - 0.25).abs().max() <= 6 * error
