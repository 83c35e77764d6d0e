"""What is refused before sampling, and what is only rounding."""

import pytest
import torch

import feasibly
from feasibly import Decoded, Equality
from feasibly.checks import check_constraint, check_denoiser
from feasibly.errors import ConstraintError, DenoiserError
from feasibly.schedules import VP

T = torch.tensor(0.5)


def states(n=2):
    return torch.randn(n, 64, generator=torch.Generator().manual_seed(0))


def half(x):
    """What a function in half precision returns, whose kernel depends on the size of the batch."""
    return torch.sin(3 * x).to(torch.float16 if len(x) == 1 else torch.bfloat16).to(x.dtype)


MATES = {
    "a mean over the batch": lambda x: half(x) + x.mean(dim=0),
    "a little of it": lambda x: half(x) + 0.1 * x.mean(dim=0),
    "the size of the batch": lambda x: half(x) / len(x),
    "chance": lambda x: half(x) + 0.1 * torch.randn_like(x),
}


def test_rounding_by_the_size_of_the_batch_is_no_dependence_on_it():
    denoiser = feasibly.wrap(lambda x, time: half(x), "eps", VP())
    x_t = states()
    apart = (denoiser(x_t[:1], T).mean - denoiser(x_t, T).mean[:1]).abs().max()
    assert apart > 5e-3
    torch.testing.assert_close(check_denoiser(denoiser, x_t, T, False), denoiser(x_t, T).mean)


@pytest.mark.parametrize("net", MATES.values(), ids=MATES)
def test_a_network_that_minds_its_batch_is_refused_in_half_precision_too(net):
    torch.manual_seed(0)
    denoiser = feasibly.wrap(lambda x, time: net(x), "eps", VP())
    with pytest.raises(DenoiserError, match="other states in its batch"):
        check_denoiser(denoiser, states(), T, False)


def test_a_decoder_may_round_by_the_size_of_the_batch():
    def decode(z):
        return z + (half(z) - torch.sin(3 * z)).detach()

    law = Decoded(Equality(lambda x: x - 0.2, tolerance=1e-2), decode)
    assert check_constraint(law, states()).shape == (2, 64)


@pytest.mark.parametrize("decode", MATES.values(), ids=MATES)
def test_a_decoder_that_minds_its_batch_is_refused(decode):
    torch.manual_seed(0)
    law = Decoded(Equality(lambda x: x - 0.2, tolerance=1e-2), lambda z: z + decode(z))
    with pytest.raises(ConstraintError, match=r"other samples in its batch|from call to call"):
        check_constraint(law, states())


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x.cumsum(0),
        lambda x: x.flip(0).cumsum(0).flip(0),
        lambda x: x + 0.1 * x.roll(1, 0),
    ],
    ids=["those before", "those after", "the one before"],
)
def test_a_residual_that_minds_other_samples_is_refused_whichever_they_are(mix):
    with pytest.raises(ConstraintError, match="other samples in its batch"):
        check_constraint(Equality(lambda x: mix(x) - 0.2, tolerance=1e-2), states())


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda x: torch.as_tensor(x.numpy()).sum(dim=1), r"(?i)functions of torch.*BlackBox"),
        (lambda x: x.detach().numpy().sum(axis=1), r"(?i)functions of torch.*BlackBox"),
        (lambda x: x[:, 0] < 15, r"at most zero there, such as x\[:, 0\] - 15"),
        (lambda x: x[0] * x[1] - 1, r"first axis of x is the batch"),
    ],
    ids=("numpy", "an array", "a comparison", "one sample"),
)
def test_a_residual_that_fails_says_how_to_write_it(function, advice):
    with pytest.raises(ConstraintError, match=advice):
        check_constraint(Equality(function, 1e-3), torch.randn(2, 2))
