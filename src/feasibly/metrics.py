"""Scores of an ensemble."""

__all__ = ["knn_cross_edge_rate", "total_variation"]

import torch
from torch import Tensor


def knn_cross_edge_rate(x: Tensor, y: Tensor, k: int = 5) -> float:
    r"""Returns the share of edges of the k-nearest-neighbour graph that join `x` and `y`.

    The directed graph on the union of both sets, in the Euclidean metric, has an edge from each
    point to each of its `k` nearest others. For equally large sets of one distribution half of
    the edges cross; the rate is 0 for separate sets and depends on `k` and the set's size.

    References:
        | Multivariate Two-Sample Tests Based on Nearest Neighbors (Schilling, 1986)
        | https://doi.org/10.1080/01621459.1986.10478337

    Arguments:
        x: One set of points, with shape :math:`(N, *)`. Non-finite points are left out.
        y: The other set, with shape :math:`(M, *)`.
        k: The number of neighbours.
    """
    x, y = (v.flatten(start_dim=1).double() for v in (x, y))
    x, y = (v[v.isfinite().all(dim=1)] for v in (x, y))
    union = torch.cat((x, y))
    from_y = torch.arange(len(union), device=union.device) >= len(x)
    distance = torch.cdist(union, union, compute_mode="donot_use_mm_for_euclid_dist")
    distance.fill_diagonal_(torch.inf)
    neighbour = distance.topk(k, dim=1, largest=False).indices
    return (from_y[neighbour] != from_y[:, None]).double().mean().item()


def total_variation(x: Tensor, y: Tensor, modes: int) -> float:
    r"""Returns the total variation between the mode masses of two ensembles,
    :math:`\frac{1}{2} \sum_k |p_k - q_k|`, in [0, 1].

    Arguments:
        x: The mode of each member of one ensemble, integers with shape :math:`(N)`.
        y: The mode of each member of the other, with shape :math:`(M)`.
        modes: The number of modes.
    """
    p, q = (torch.bincount(v, minlength=modes) / v.numel() for v in (x, y))
    return (p - q).abs().sum().item() / 2
