r"""Scores of ensembles.

Scores of trajectories follow the paper's Appendix A. They take :math:`K` ensembles of :math:`M`
members, with shape :math:`(K, M, T, *)`, and their references, with shape :math:`(K, T, *)`. The
axis :math:`T` is the time of the system, and a score has one value for each time, with shape
:math:`(T)`. It is an average over space, with optional `weights` (:func:`area_weights`), and over
the :math:`K` cases. Roots are taken last.
"""

__all__ = [
    "area_weights",
    "crps",
    "crps_of_each",
    "is_outlying",
    "knn_cross_edge_rate",
    "max_norm",
    "rank_histogram",
    "rmse",
    "skill",
    "sliced_wasserstein",
    "spread",
    "spread_skill_ratio",
    "summary",
    "weight_error",
]

from math import sqrt

import torch
from torch import Tensor


def knn_cross_edge_rate(x: Tensor, y: Tensor, k: int = 5) -> float:
    r"""Returns the share of edges of the k-nearest-neighbour graph that join `x` and `y`.

    The graph has an edge from each point of the union to each of its `k` nearest other points.
    Half of the edges cross if both sets are of one distribution and equally large, and none if
    they are far apart. In between, the rate depends on `k` and on the size of the sets.

    References:
        | Multivariate Two-Sample Tests Based on Nearest Neighbors (Schilling, 1986)
        | https://doi.org/10.1080/01621459.1986.10478337

    Arguments:
        x: One set of points, with shape :math:`(N, *)`. Non-finite points are left out.
        y: The other set, with shape :math:`(M, *)`.
        k: The number of neighbours.

    Example:
        >>> x = torch.linspace(0, 1, 50)[:, None]
        >>> feasibly.metrics.knn_cross_edge_rate(x, x + 10)  # far apart
        0.0
    """
    x, y = (v.flatten(start_dim=1).double() for v in (x, y))
    x, y = (v[v.isfinite().all(dim=1)] for v in (x, y))
    union = torch.cat((x, y))
    from_y = torch.arange(len(union), device=union.device) >= len(x)
    distance = torch.cdist(union, union, compute_mode="donot_use_mm_for_euclid_dist")
    distance.fill_diagonal_(torch.inf)
    neighbour = distance.topk(k, dim=1, largest=False).indices
    return (from_y[neighbour] != from_y[:, None]).double().mean().item()


def weight_error(x: Tensor, y: Tensor, modes: int) -> float:
    r"""Returns the weight error: the total variation between the mode weights of two ensembles,
    :math:`\frac{1}{2} \sum_k |p_k - q_k|`.

    Arguments:
        x: The mode of each member of one ensemble, integers with shape :math:`(N)`.
        y: The mode of each member of the other, with shape :math:`(M)`.
        modes: The number of modes.

    Example:
        >>> x, y = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1])
        >>> feasibly.metrics.weight_error(x, y, modes=2)
        0.25
    """
    p, q = (torch.bincount(v, minlength=modes) / v.numel() for v in (x, y))
    return (p - q).abs().sum().item() / 2


def sliced_wasserstein(x: Tensor, y: Tensor, directions: int = 256) -> float:
    r"""Returns the sliced 2-Wasserstein distance of two ensembles.

    It is the root mean square of the distance between their projections onto random directions,
    the same for all ensembles of one shape. Ensembles of different sizes are compared at the
    quantiles of the smaller one.

    References:
        | Sliced and Radon Wasserstein Barycenters of Measures (Bonneel et al., 2015)
        | https://doi.org/10.1007/s10851-014-0506-3

    Arguments:
        x: One ensemble, with shape :math:`(N, *)`.
        y: The other, with shape :math:`(M, *)`.
        directions: The number of directions.

    Example:
        >>> x = torch.linspace(0, 1, 50)[:, None]
        >>> round(feasibly.metrics.sliced_wasserstein(x, x + 3), 3)  # a shift by 3
        3.0
    """
    x, y = (v.flatten(start_dim=1).double() for v in (x, y))
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(x.shape[1], directions, generator=generator, dtype=torch.float64).to(x.device)
    u = u / u.norm(dim=0)
    n = min(len(x), len(y))
    twice = 2 * torch.arange(n, device=x.device) + 1  # of n levels in the middle of their shares
    x, y = ((v @ u).sort(dim=0).values[twice * len(v) // (2 * n)] for v in (x, y))
    return (x - y).square().mean().sqrt().item()


def is_outlying(r: Tensor, k: int = 5, share: float = 0.99) -> bool:
    r"""Returns whether zero lies apart from samples of residuals, with shape :math:`(N, m)`.

    It does if it is farther from its `k`-th nearest sample than that `share` of samples are from
    theirs, with residuals in units of their standard deviations. A few samples, up to `k`, do not
    tell.

    Example:
        >>> r = torch.linspace(-1, 1, 101)[:, None]
        >>> feasibly.metrics.is_outlying(r), feasibly.metrics.is_outlying(r + 10)
        (False, True)
    """
    if len(r) <= k:
        return False
    r = r.double()
    r = r / r.std(dim=0).clamp_min(torch.finfo(r.dtype).tiny)
    own = torch.cdist(r, r).topk(k + 1, largest=False).values[:, -1]
    mine = r.norm(dim=1).topk(k, largest=False).values[-1]
    return bool(mine > own.quantile(share))


def area_weights(latitude: Tensor) -> Tensor:
    r"""Returns the area of each row of cells on the sphere, relative to their mean.

    A cell reaches half way to its neighbours, and the first and the last cell reach a pole:
    :math:`w_i \propto \sin(\mathrm{upper}_i) - \sin(\mathrm{lower}_i)`.

    References:
        | WeatherBench 2 (Rasp et al., 2024), Section 4
        | https://doi.org/10.1029/2023MS004019

    Arguments:
        latitude: The latitudes of the rows in degrees, in ascending or descending order, with
            shape :math:`(N)`.

    Returns:
        The weights, with shape :math:`(N, 1)`, which broadcasts over longitudes.

    Raises:
        ValueError: If the latitudes are not in order or lie beyond a pole.

    Example:
        >>> feasibly.metrics.area_weights(torch.tensor([-60.0, 0.0, 60.0])).flatten()
        tensor([0.7500, 1.5000, 0.7500])
    """
    steps = latitude.diff().sign()
    if not (steps.abs().eq(1).all() and steps.eq(steps[0]).all() and latitude.abs().max() <= 90):
        raise ValueError(
            "area_weights(latitude) needs latitudes within [-90, 90] degrees, in ascending or "
            f"descending order, got {latitude.tolist()}."
        )
    ends = 90.0 * steps[:1]
    bounds = torch.cat((-ends, (latitude[1:] + latitude[:-1]) / 2, ends))
    weight = bounds.deg2rad().sin().diff().abs()
    return (weight / weight.mean())[:, None]


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the mean over cases and space, which are all axes but the second."""
    if weights is not None:
        values = values * (weights / weights.expand(values.shape[2:]).mean())
    return values.movedim(1, 0).flatten(start_dim=1).mean(dim=1)


def _check(x: Tensor, y: Tensor, members: int = 1) -> None:
    if x.ndim < 3 or y.shape != (x.shape[0], *x.shape[2:]):
        raise ValueError(
            "Scores take ensembles of shape (K, M, T, *) and references of shape (K, T, *), got "
            f"{tuple(x.shape)} and {tuple(y.shape)}."
        )
    if x.shape[1] < members:
        raise ValueError(f"This score needs at least {members} members, got {x.shape[1]}.")


def rmse(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the root mean square error of the members, with shape (T).

    Example:
        >>> x = torch.tensor([[[1.0], [-1.0]]])  # one case, two members, one time
        >>> feasibly.metrics.rmse(x, torch.tensor([[0.0]])).tolist()
        [1.0]
    """
    _check(x, y)
    return _mean((x - y[:, None]).square().mean(dim=1), weights).sqrt()


def skill(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the root mean square error of the ensemble mean, with shape (T).

    Example:
        >>> x = torch.tensor([[[1.0], [-1.0]]])
        >>> feasibly.metrics.skill(x, torch.tensor([[0.0]])).tolist()  # the mean is right
        [0.0]
    """
    _check(x, y)
    return _mean((x.mean(dim=1) - y).square(), weights).sqrt()


def spread(x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the root of the mean ensemble variance, over M - 1, with shape (T).

    References:
        | Why should ensemble spread match the RMSE of the ensemble mean? (Fortin et al., 2014)
        | https://doi.org/10.1175/JHM-D-14-0008.1

    Example:
        >>> feasibly.metrics.spread(torch.tensor([[[0.0], [2.0], [4.0]]])).tolist()
        [2.0]
    """
    _check(x, x[:, 0], members=2)
    return _mean(x.var(dim=1), weights).sqrt()


def spread_skill_ratio(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Returns :math:`\sqrt{(M + 1) / M}` times spread over skill, with shape (T).

    It is 1 in expectation if the reference is of the same distribution as the members.

    Example:
        >>> x = torch.tensor([[[0.0], [2.0], [4.0]]])
        >>> feasibly.metrics.spread_skill_ratio(x, torch.tensor([[4.0]]))
        tensor([1.1547])
    """
    members = x.shape[1]
    return sqrt((members + 1) / members) * spread(x, weights) / skill(x, y, weights)


def crps(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Returns the fair continuous ranked probability score, with shape (T):

    .. math:: \frac{1}{M} \sum_m |x_m - y| - \frac{1}{2 M (M - 1)} \sum_{m, n} |x_m - x_n| .

    References:
        | Estimation of the Continuous Ranked Probability Score with Limited Information
        | (Zamo & Naveau, 2018), https://doi.org/10.1007/s11004-017-9709-7

    Example:
        >>> x = torch.tensor([0.0, 1.0, 2.0]).reshape(1, 3, 1)  # one case, three members, one time
        >>> feasibly.metrics.crps(x, torch.tensor([[1.0]])).round(decimals=3).tolist()
        [0.0]
    """
    _check(x, y, members=2)
    return _mean(crps_of_each(x, y), weights)


def crps_of_each(x: Tensor, y: Tensor) -> Tensor:
    """Returns the fair continuous ranked probability score of each element, with the shape of the
    references; see :func:`crps`.

    Example:
        >>> x = torch.tensor([[[0.0], [1.0], [2.0]]])
        >>> feasibly.metrics.crps_of_each(x, torch.tensor([[3.0]]))
        tensor([[1.3333]])
    """
    members = x.shape[1]
    error = (x - y[:, None]).abs().mean(dim=1)
    # sum_{m,n} |x_m - x_n| = 2 sum_i (2 i - M - 1) x_(i) over the sorted members
    order = 2 * torch.arange(1, members + 1, device=x.device) - members - 1
    shape = (members,) + (1,) * (x.ndim - 2)
    pairs = 2 * (order.to(x).reshape(shape) * x.sort(dim=1).values).sum(dim=1)
    return error - pairs / (2 * members * (members - 1))


def summary(x: Tensor, y: Tensor, weights: Tensor | None = None) -> dict[str, list[float]]:
    """Returns, to five digits, scores whose means over several cases may be taken.

    They are, by time, the mean squares of the members' errors (`mse`), of the error of the
    ensemble mean (`mean_se`) and of the ensemble (`variance`), and the `crps`; and the shares of
    the `ranks`. Take means before roots.

    Example:
        >>> x = torch.tensor([[[0.0], [2.0], [4.0]]])
        >>> feasibly.metrics.summary(x, torch.tensor([[3.0]]))["crps"]
        [0.33333]
    """
    found = {
        "mse": rmse(x, y, weights).square(),
        "mean_se": skill(x, y, weights).square(),
        "variance": spread(x, weights).square(),
        "crps": crps(x, y, weights),
        "ranks": rank_histogram(x, y),
    }
    return {name: [float(f"{v:.5g}") for v in values] for name, values in found.items()}


def rank_histogram(x: Tensor, y: Tensor) -> Tensor:
    """Returns the shares of the ranks of the reference among the members, with shape (M + 1).

    Ranks are counted over cases, times and space. The histogram is flat if the reference is of
    the same distribution as the members, and a U if the members are too close together.

    Example:
        >>> x = torch.tensor([[[0.0], [1.0], [2.0]]])
        >>> feasibly.metrics.rank_histogram(x, torch.tensor([[1.5]]))  # above two of three
        tensor([0., 0., 1., 0.])
    """
    _check(x, y)
    rank = (x < y[:, None]).sum(dim=1)
    return torch.bincount(rank.flatten(), minlength=x.shape[1] + 1) / rank.numel()


def max_norm(x: Tensor, y: Tensor) -> Tensor:
    r"""Returns the largest change between consecutive times, relative to the reference's:

    .. math:: \frac{\max_t \|x^{t+1} - x^t\|_\infty}{\max_t \|y^{t+1} - y^t\|_\infty} .

    It has the shape :math:`(K, M)`, and is about 1 for a trajectory of the same distribution as
    the reference. The paper uses this score, Max-Norm, without a definition; this definition gives
    its values.

    Example:
        >>> y = torch.tensor([[0.0, 1.0, 0.0]])
        >>> feasibly.metrics.max_norm(torch.stack((y, 2 * y), dim=1), y).tolist()
        [[1.0, 2.0]]
    """
    _check(x, y)

    def largest(u: Tensor, axis: int) -> Tensor:
        return u.diff(dim=axis).abs().flatten(start_dim=axis).amax(dim=axis)

    return largest(x, 2) / largest(y, 1)[:, None]
