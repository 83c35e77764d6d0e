"""What the tests of exact distributions share."""

import os
from dataclasses import replace

import torch

from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.run import run

torch.set_num_threads(int(os.environ.get("FEASIBLY_TEST_THREADS", "1")))


def sampled(kernel, n, seed=0, monitor=None, **changes):
    """Samples by a kernel once, on its problem but for some changes."""
    kernel = replace(kernel, problem=kernel.problem.but(**changes))
    return run([kernel], n, seed=seed, monitor=monitor)


def gaussians(denoiser, n, seed=7):
    """Samples of a Gaussian or of a mixture, from what its denoiser keeps of it."""
    assert isinstance(denoiser, Gaussian | GaussianMixture)
    generator = torch.Generator().manual_seed(seed)
    one = isinstance(denoiser, Gaussian)
    buffers = (denoiser.mu, denoiser.values, denoiser.vectors)
    mu, values, vectors = (b[None] for b in buffers) if one else buffers
    weights = torch.ones(1) if one else denoiser.log_weights.exp()
    k = torch.multinomial(weights, n, replacement=True, generator=generator)
    x = torch.randn(n, mu.shape[1], generator=generator, dtype=torch.float64)
    for j in range(len(mu)):
        x[k == j] = mu[j] + (values[j].sqrt() * x[k == j]) @ vectors[j].T
    return x
