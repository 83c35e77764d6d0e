"""Tests against truths: their exact distributions, and what they find."""

import itertools
import math

import pytest
import torch

from feasibly import calibration, metrics
from feasibly.calibration import swap_test


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def null_of(scores):
    """The largest standardised sum for every choice of the truths' entries."""
    v = scores - scores.mean(dim=1, keepdim=True)
    v = v / v.square().mean(dim=1).sum(dim=0).sqrt()
    rows, entries, _ = v.shape
    sums = [
        torch.stack([v[n, j] for n, j in enumerate(chosen)]).sum(dim=0)
        for chosen in itertools.product(range(entries), repeat=rows)
    ]
    return torch.stack(sums)


def test_a_p_value_is_the_share_of_choices_that_come_as_far():
    """Of 243 choices. The standard error of the estimate is 0.008 at most."""
    for seed in range(4):
        scores = normal(5, 3, 2, seed=seed)
        null = null_of(scores).abs().amax(dim=1)
        exact = (null >= null[0] - 1e-9).double().mean().item()
        test = swap_test(scores, level=0.1, seed=seed)
        assert test.p == pytest.approx(exact, abs=0.035)  # four standard errors
        assert test.z.abs().max().item() == pytest.approx(null[0].item())
        # so often the critical value is exceeded
        assert (null > test.critical).double().mean() == pytest.approx(0.1, abs=0.04)


def test_a_small_p_value_is_an_upper_bound():
    scores = normal(7, 3, 2, seed=3)
    null = null_of(scores)
    v = scores - scores.mean(dim=1, keepdim=True)
    v = v / v.square().mean(dim=1).sum(dim=0).sqrt()
    for threshold in (1.0, 2.0, 2.5):
        exact = (null.abs().amax(dim=1) >= threshold).double().mean().item()
        assert exact <= calibration._tail(v, torch.tensor(threshold)) < 1 + 60 * exact


def test_one_truth_in_eight_is_the_largest_by_chance():
    """All of 64 are, so that the probability is that of 64 independent eighths."""
    scores = torch.zeros(64, 8, 1).double()
    scores[:, 0] = 1
    test = swap_test(scores)
    assert test.p == pytest.approx(8.0**-64, rel=1e-6)  # where Chernoff's bound is exact
    assert test.z.item() == pytest.approx(64 * (1 - 1 / 8) / math.sqrt(64 * 7 / 64))


def test_scores_that_cannot_vary_count_for_nothing():
    scores = torch.ones(20, 4, 2).double()
    scores[..., 1] = normal(20, 4)
    assert swap_test(scores).z[0] == 0
    assert swap_test(scores[..., :1]).p == 1


def test_p_values_are_uniform_if_nothing_is_wrong():
    """Of 300 tables with heavy tails. A share is off by more than four standard errors in one of
    5000 runs with other seeds, for each of 6 shares."""
    found = []
    for seed in range(300):
        table = normal(20, 5, 3, seed=seed).exp()
        scores = torch.cat(
            [calibration.spreads(table[..., None]), calibration.locations(table)], 2
        )
        found.append(swap_test(scores, swaps=300, seed=seed).p)
    p = torch.tensor(found)
    for level in (0.01, 0.05, 0.2, 0.5, 0.8, 0.95):
        error = math.sqrt(level * (1 - level) / len(p))
        assert (p <= level).double().mean() == pytest.approx(level, abs=4 * error)


def test_holms_method_multiplies_the_least_by_their_number():
    assert calibration.adjusted([0.01, 0.5, 0.02, 0.03]) == pytest.approx([0.04, 0.5, 0.06, 0.06])
    assert calibration.adjusted([0.9]) == [0.9]


def test_ranks_are_a_permutation_of_each_row_and_equal_values_have_any():
    values = torch.tensor([[3.0, 1.0, 2.0]])[..., None]
    assert calibration.ranks(values).flatten().tolist() == [2, 0, 1]
    rank = calibration.ranks(torch.zeros(4000, 4, 1))
    assert (rank.sort(dim=1).values == torch.arange(4)[:, None]).all()
    share = torch.bincount(rank[:, 0, 0], minlength=4) / 4000
    assert (share - 0.25).abs().max() < 0.03  # four standard errors


def test_directions_that_a_constraint_fixes_are_left_out():
    table = normal(40, 5, 3)
    table[..., 2] = normal(40, 1) + 1e-5 * table[..., 2]  # differs from truth to truth
    found = calibration.projected(table)
    assert found.values.shape == (40, 5, 2)
    assert found.values.std(dim=1).square().mean(dim=0).sqrt().tolist() == pytest.approx([1, 1])
    wide = torch.cat([table, torch.zeros(40, 5, 400).double()], dim=2)  # more elements than rows
    torch.testing.assert_close(calibration.projected(wide).std, found.std)


def test_a_spread_is_relative_to_the_right_one():
    """Off by four standard errors in one of 16,000 runs with other seeds."""
    for width, members in ((0.73, 7), (1.0, 3), (1.5, 15)):
        table = normal(2000, members + 1, 3)
        table[:, 1:] *= width
        ratio = calibration.spread_skill(table)
        assert ratio.error < 0.03 * width
        assert ratio.value == pytest.approx(width, abs=4 * ratio.error)


def test_scores_of_location_tell_a_shift_from_a_pull_to_the_middle():
    table = normal(200, 5, 1) + 3 * normal(200, 1, 1, seed=1)
    shifted, drawn = table.clone(), table.clone()
    shifted[:, 0] += 0.5
    drawn[:, 1:] *= 0.8
    still, one, other = (swap_test(calibration.locations(t)) for t in (table, shifted, drawn))
    assert still.p > 0.01
    assert (one.p < 1e-6, one.worst) == (True, 0)
    assert (other.p < 1e-6, other.worst) == (True, 1)


def test_coverage_counts_the_truths_within_each_rank():
    rank = torch.tensor([[[0], [1], [2]], [[2], [0], [1]]])
    assert calibration.coverage(rank)[:, 0].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    table = normal(100, 8, 4)
    assert swap_test(calibration.coverage(calibration.tarp_ranks(table))).p > 0.01
    table[:, 1:] *= 0.7
    assert swap_test(calibration.coverage(calibration.tarp_ranks(table))).p < 1e-6


def mixture(weight, rows, entries, seed):
    """Normals around -2 and 2 in the first of four elements."""
    x, u = (
        0.3 * normal(rows, entries, 4, seed=seed),
        torch.rand(rows, entries, generator=generator(seed)),
    )
    x[..., 0] += torch.where(u < weight, 2.0, -2.0)
    return x


@pytest.mark.slow
def test_a_weight_that_is_off_by_a_tenth_is_found():
    """At 512 truths with 7 members, in 4 of 5 audits, at a level of 0.05 / 7."""
    found = []
    for seed in range(6):
        table = torch.cat([mixture(0.5, 512, 1, seed), mixture(0.6, 512, 7, 100 + seed)], dim=1)
        labels = calibration.clusters(table, seed=seed)
        found.append(swap_test(calibration.memberships(labels)).p < 0.05 / 7)
    assert sum(found) >= 4


def test_clusters_are_the_modes():
    table = mixture(0.5, 50, 4, seed=0)
    label, *_ = calibration.clusters(table, counts=(2,))
    assert label.shape == (50, 4)
    right = label == (table[..., 0] > 0)
    assert right.all() or not right.any()
    scores = calibration.memberships([label])
    assert scores.shape == (50, 4, 3)
    # of each row, how many are in the same mode
    same = (label[:, :, None] == label[:, None]).double().mean(dim=2)
    torch.testing.assert_close(scores[..., 2], same)


def test_members_that_leave_the_data_are_far_from_their_neighbours():
    """A fifth of the members are anywhere in a box twelve times as large as the data."""
    table = torch.rand(64, 8, 2, generator=generator())
    table[:, 1:][torch.rand(64, 7, generator=generator(1)) < 0.2] *= 12
    index, scores = calibration.neighbours(table)
    assert index.shape == (512, 5)
    rows = torch.arange(512)[:, None] // 8
    assert (index // 8 != rows).all()
    test = swap_test(scores)
    assert test.p < 1e-3
    assert test.z[test.worst] < 0


def test_truths_that_are_among_themselves_have_edges_to_one_another():
    table = normal(40, 4, 2)
    index, _ = calibration.neighbours(table)
    assert calibration.graph_test(index, 4).p > 0.01
    table[:, 0] += 9
    index, _ = calibration.neighbours(table)
    assert calibration.graph_test(index, 4).p < 1e-3


def test_an_energy_score_is_the_crps_of_one_element():
    table = normal(30, 6, 1)
    crps = metrics.crps(table[:, 1:], table[:, 0])
    assert calibration.energy_scores(table).mean().item() == pytest.approx(crps.item())
    wide = normal(30, 6, 3)
    crps = metrics.crps(wide[:, 1:], wide[:, 0]).mean().item()
    each = metrics.crps_of_each(wide[:, 1:], wide[:, 0])
    assert each.mean().item() == pytest.approx(crps)


def test_an_energy_score_has_no_part_that_depends_on_the_number_of_members():
    """Off by four standard errors in one of 16,000 runs with other seeds."""
    few, many = (calibration.energy_scores(normal(4000, m + 1, 2, seed=m)) for m in (2, 20))
    error = math.sqrt(few.var() / 4000 + many.var() / 4000)
    assert few.mean().item() == pytest.approx(many.mean().item(), abs=4 * error)
