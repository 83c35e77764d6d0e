r"""A zoo of tiny networks, one of each architecture, whose samples are known.

The data are a mixture of two normal distributions of 64 elements, seen as 4 channels of 4 x 4
pixels or as 16 tokens of 4 features. A network adds the output of its architecture to the exact
noise prediction, as a trained network adds its error: a few percent of the noise. So each is a
right denoiser, and its derivatives are those of the architecture too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import feasibly
from feasibly.constraints import Decoded, Equality, Linear
from feasibly.constraints.base import Constraint
from feasibly.schedules import VP

SHAPE = (4, 4, 4)
D, WIDTH = 64, 4
ERROR = 0.03
"""The part of a noise prediction that is the architecture's own."""

SCHEDULE = VP()


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


BASIS = torch.linalg.qr(normal(D, D, seed=0)).Q
VARIANCES = torch.linspace(0.05, 1.0, D, dtype=torch.float64)
COVARIANCE = BASIS * VARIANCES @ BASIS.T
MODE = 2.5 * BASIS[:, -1]
"""The means are at plus and minus this, and as likely."""


class Valid(nn.Module):
    """The exact noise prediction, and some of an architecture.

    Arguments:
        body: The architecture, from states with shape (B, 4, 4, 4) and times with shape (B) to
            as many numbers.
    """

    basis: Tensor
    variances: Tensor
    mode: Tensor

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("basis", BASIS.float())
        self.register_buffer("variances", VARIANCES.float())
        self.register_buffer("mode", (MODE @ BASIS).float())
        self.error = ERROR

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.exact(x, t) + self.error * self.body(x, t).reshape(x.shape).tanh()

    def exact(self, x: Tensor, t: Tensor) -> Tensor:
        log_alpha = -(t**2) * (20.0 - 0.1) / 4 - t * 0.1 / 2
        alpha = log_alpha.exp()[:, None]
        sigma = (-torch.expm1(2 * log_alpha)).sqrt()[:, None]
        # in the eigenbasis of the covariance, where the noise of one mode is z / sigma
        z = x.flatten(1).to(self.basis.dtype) @ self.basis
        variance = alpha**2 * self.variances + sigma**2
        side = torch.tanh((alpha * self.mode * z / variance).sum(dim=1, keepdim=True))
        noise = sigma * (z - alpha * side * self.mode) / variance
        return (noise @ self.basis.T).reshape(x.shape).to(x.dtype)


def tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)  # (B, 16, 4)


def pixels(h: Tensor) -> Tensor:
    return h.transpose(1, 2).reshape(h.shape[0], 4, 4, 4)


class Timed(nn.Module):
    """A network of the state, to whose channels an embedding of the time is added."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.embed = nn.Linear(2, WIDTH)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        wave = torch.stack([torch.sin(6.0 * t), torch.cos(6.0 * t)], dim=1)
        return self.net(x + self.embed(wave.to(x.dtype))[:, :, None, None])


class Of(nn.Module):
    """A function of modules and of the state, as a module."""

    def __init__(self, f: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.f, self.parts = f, nn.ModuleDict(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x, **dict(self.parts.items()))


def convolution(channels: int = 8) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, channels, 3, padding=1), nn.SiLU(), nn.Conv2d(channels, 4, 3, padding=1)
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8))
        self.middle = nn.Sequential(nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.dropout(self.middle(self.down(x))))


def attention(backend: SDPBackend | None = None, **options: Any) -> nn.Module:
    def run(x: Tensor, qkv: nn.Module) -> Tensor:
        parts = [p.unflatten(2, (2, 4)).transpose(1, 2) for p in qkv(tokens(x)).chunk(3, dim=2)]
        if backend is None:
            h = F.scaled_dot_product_attention(*parts, **options)
        else:
            with sdpa_kernel(backend):
                h = F.scaled_dot_product_attention(*parts, **options)
        return pixels(h.sum(dim=1))

    return Of(run, qkv=nn.Linear(4, 24))


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def recurrent(kind: Callable[..., nn.Module], **options: Any) -> nn.Module:
    net = kind(4, 4, batch_first=True, **options)
    return Of(lambda x, net: pixels(net(tokens(x))[0][..., :4]), net=net)


FROM, TO = torch.arange(16).repeat(3), torch.cat([torch.arange(16).roll(k) for k in (1, 4, -1)])


def graph(gather: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """Messages along edges; `gather` sums those of shape (B, edges, 4) at the nodes TO."""

    def run(x: Tensor, message: nn.Module) -> Tensor:
        h = tokens(x)
        ends = torch.cat([h[:, FROM.to(x.device)], h[:, TO.to(x.device)]], dim=2)
        return pixels(h + gather(message(ends).relu(), h))

    return Of(run, message=nn.Linear(8, 4))


def index_add(messages: Tensor, h: Tensor) -> Tensor:
    return torch.zeros_like(h).index_add(1, TO.to(h.device), messages)


def scatter_max(messages: Tensor, h: Tensor) -> Tensor:
    to = TO.to(h.device)[None, :, None].expand_as(messages)
    return torch.zeros_like(h).scatter_reduce(1, to, messages, "amax")


def distances(x: Tensor, out: nn.Module) -> Tensor:
    h = tokens(x)
    return pixels(h + out(torch.cdist(h, h)))


class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 4, 3, dtype=torch.cfloat) / 4)

    def forward(self, x: Tensor) -> Tensor:
        f = torch.einsum("bihw,iohw->bohw", torch.fft.rfft2(x), self.weight)
        return x + torch.fft.irfft2(f, s=x.shape[-2:])


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2, dtype=torch.cfloat)

    def forward(self, x: Tensor) -> Tensor:
        h = self.net(torch.view_as_complex(tokens(x).unflatten(2, (2, 2)).contiguous()))
        return pixels(torch.view_as_real(h * h.abs()).flatten(2))


def warp(x: Tensor, net: nn.Module) -> Tensor:
    offset = net(x).tanh().permute(0, 2, 3, 1) / 4
    eye = torch.eye(2, 3, dtype=x.dtype, device=x.device).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(eye, list(x.shape), False) + offset, align_corners=False)


class Cube(torch.autograd.Function):
    """A function whose backward pass can be differentiated, and which has no forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3 / 3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * x**2


class Once(Cube):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * x**2


class Recompute(torch.autograd.Function):
    """A function that computes its graph in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        with torch.no_grad():
            return x.sin() * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            return torch.autograd.grad(z.sin() * z, z, grads[0])[0]


class Numpy(torch.autograd.Function):
    """A function that another library computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().cpu().numpy().copy()).to(x).sin()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(grads[0].cpu().numpy() * x.detach().cpu().cos().numpy()).to(x)


def through(function: type[torch.autograd.Function]) -> nn.Module:
    return Of(lambda x, a, b: b(function.apply(a(x))), a=nn.Conv2d(4, 4, 1), b=nn.Conv2d(4, 4, 1))


def checkpointed(reentrant: bool) -> nn.Module:
    return Of(
        lambda x, a, b: b(checkpoint(a, x, use_reentrant=reentrant)),
        a=convolution(),
        b=convolution(),
    )


class Energy(nn.Module):
    """The gradient of an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = convolution()

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            z = x if x.requires_grad else x.detach().requires_grad_()
            energy = self.net(z).square().sum()
            (force,) = torch.autograd.grad(energy, z, create_graph=True)
        return force


class Keeps(nn.Module):
    """Keeps tensors of the last call: features, and a table of positions that it uses again."""

    def __init__(self) -> None:
        super().__init__()
        self.net = convolution()
        self.positions: dict[int, Tensor] = {}
        self.last: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] not in self.positions:
            grid = torch.linspace(-1, 1, x.shape[-1], device=x.device)
            self.positions[x.shape[-1]] = grid.sin()
        self.last = [self.net(x * (1 + self.positions[x.shape[-1]].to(x)))]
        return self.last[0]


def kept() -> nn.Module:
    net = Keeps()
    net(torch.ones(1, *SHAPE))  # with a graph, as after training
    return net


def hooked() -> nn.Module:
    net = convolution()
    net[0].register_forward_pre_hook(lambda _, given: (given[0] * 1.1,))
    net[1].register_forward_hook(lambda _, given, found: found + 0.1)
    net[2].register_full_backward_hook(lambda _, into, out: None)
    return net


def lazy() -> nn.Module:
    net = nn.Sequential(nn.LazyConv2d(8, 3, padding=1), nn.SiLU(), nn.LazyConv2d(4, 3, padding=1))
    net(torch.zeros(1, *SHAPE))
    return net


def old_weight_norm() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Conv2d(4, 4, 3, padding=1)), nn.Tanh())


def experts(x: Tensor, gate: nn.Module, one: nn.Module, two: nn.Module) -> Tensor:
    h = tokens(x)
    weight, which = gate(h).softmax(dim=2).topk(1, dim=2)
    both = torch.stack([one(h), two(h)], dim=3)
    return pixels(weight * both.gather(3, which[..., None].expand(*h.shape, 1))[..., 0])


def linear_attention(x: Tensor, qkv: nn.Module) -> Tensor:
    q, k, v = qkv(tokens(x)).chunk(3, dim=2)
    state = torch.einsum("bnd,bne->bnde", k.exp(), v).cumsum(dim=1)
    return pixels(torch.einsum("bnd,bnde->bne", q.softmax(dim=2), state) / 16)


def ensemble(x: Tensor, net: nn.Module) -> Tensor:
    """One network on each token, by torch.func."""
    weights: dict[str, Tensor] = {}
    weights.update(net.named_parameters())

    def one(token: Tensor) -> Tensor:
        return torch.func.functional_call(net, weights, (token,))

    return pixels(torch.func.vmap(torch.func.vmap(one))(tokens(x)))


def implicit(x: Tensor, net: nn.Module) -> Tensor:
    """A layer that solves a linear system."""
    h = tokens(x)
    eye = torch.eye(16, dtype=x.dtype, device=x.device)
    return pixels(torch.linalg.solve(4 * eye + net(h) @ h.mT / 16, h))


def patches(x: Tensor, net: nn.Module) -> Tensor:
    h = F.unfold(x, 2, stride=2).transpose(1, 2)
    return F.fold(net(h).transpose(1, 2), (4, 4), 2, stride=2)


class Block(nn.Module):
    """A block of a diffusion transformer, modulated by the time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(approximate="tanh"), nn.Linear(8, 4))
        self.modulate = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 12))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        wave = torch.stack([torch.sin(6 * t), torch.cos(6 * t)], dim=1).to(x.dtype)
        shift, scale, gate = self.modulate(wave)[:, None].chunk(3, dim=2)
        h = self.norm(tokens(x)) * (1 + scale) + shift
        h = tokens(x) + gate * self.attention(h, h, h, need_weights=False)[0]
        return pixels(h + self.mlp(self.norm(h)))


class Steps(nn.Module):
    """A network that looks its time up in a table of whole steps."""

    def __init__(self) -> None:
        super().__init__()
        self.valid = Valid(Timed(convolution()))
        self.table = nn.Embedding(1000, 4)

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        t = SCHEDULE.time(k.to(x.dtype) / 999)
        return self.valid(x + 1e-3 * self.table(k)[:, :, None, None], t)


@dataclass
class Output:
    noise: Tensor
    loss: float | None = None


class Returns(nn.Module):
    def __init__(self, net: nn.Module, pack: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.pack = net, pack

    def forward(self, x: Tensor, t: Tensor) -> Any:
        return self.pack(self.net(x, t))


class Skip(nn.Module):
    """The exact prediction in single precision, around an architecture in another."""

    def __init__(self, net: Valid, dtype: torch.dtype) -> None:
        super().__init__()
        self.exact, self.body, self.dtype = net.exact, net.body.to(dtype), dtype
        self.valid = net

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        own = self.body(x.to(self.dtype), t).reshape(x.shape).tanh()
        return self.exact(x, t) + ERROR * own.to(x.dtype)


def on_states(make: Callable[[], nn.Module]) -> Callable[[], Any]:
    """A network of an architecture that takes states alone."""
    return lambda: Valid(Timed(make()))


def on_tokens(make: Callable[[], nn.Module]) -> Callable[[], Any]:
    return on_states(lambda: Of(lambda x, net: pixels(net(tokens(x))), net=make()))


def plain() -> Valid:
    return Valid(Timed(convolution()))


def example() -> tuple[Tensor, Tensor]:
    return torch.ones(2, *SHAPE), torch.full((2,), 0.5)


def exported() -> Any:
    batch = torch.export.Dim("batch")
    shapes = ({0: batch}, {0: batch})
    return torch.export.export(plain(), example(), dynamic_shapes=shapes).module()


class Function:
    """A network that is no module."""

    def __init__(self) -> None:
        self.net = plain()

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return self.net(x, t)


def normed(how: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(how(nn.Conv2d(4, 4, 3, padding=1)), nn.Tanh(), nn.Conv2d(4, 4, 1))


parametrized = nn.utils.parametrizations

ZOO: dict[str, Callable[[], Any]] = {
    "convolution": plain,
    "UNet, dropout, batch and group norm": on_states(UNet),
    "attention, default": on_states(attention),
    "attention, math": on_states(lambda: attention(SDPBackend.MATH)),
    "attention, flash": on_states(lambda: attention(SDPBackend.FLASH_ATTENTION)),
    "attention, causal": on_states(lambda: attention(is_causal=True)),
    "MultiheadAttention": on_tokens(
        lambda: Of(
            lambda h, net: net(h, h, h)[0], net=nn.MultiheadAttention(4, 2, batch_first=True)
        )
    ),
    "linear attention": on_states(lambda: Of(linear_attention, qkv=nn.Linear(4, 12))),
    "TransformerEncoder": on_tokens(encoder),
    "TransformerEncoder, norm first": on_tokens(lambda: encoder(norm_first=True)),
    "diffusion transformer": lambda: Valid(Block()),
    "LSTM": on_states(lambda: recurrent(nn.LSTM)),
    "LSTM, both ways": on_states(lambda: recurrent(nn.LSTM, bidirectional=True)),
    "GRU": on_states(lambda: recurrent(nn.GRU)),
    "graph, index_add": on_states(lambda: graph(index_add)),
    "graph, scatter_reduce": on_states(lambda: graph(scatter_max)),
    "distances, cdist": on_states(lambda: Of(distances, out=nn.Linear(16, 4))),
    "Fourier layer": on_states(Fourier),
    "complex layers": on_states(Complex),
    "grid_sample": on_states(lambda: Of(warp, net=nn.Conv2d(4, 2, 1))),
    "patches, unfold and fold": on_states(lambda: Of(patches, net=nn.Linear(16, 16))),
    "checkpoints": on_states(lambda: checkpointed(False)),
    "checkpoints, reentrant": on_states(lambda: checkpointed(True)),
    "custom Function": on_states(lambda: through(Cube)),
    "custom Function, once differentiable": on_states(lambda: through(Once)),
    "custom Function, recomputes": on_states(lambda: through(Recompute)),
    "custom Function, numpy": on_states(lambda: through(Numpy)),
    "gradient of an energy": on_states(Energy),
    "implicit layer, linalg.solve": on_states(lambda: Of(implicit, net=nn.Linear(4, 4))),
    "experts, topk and gather": on_states(
        lambda: Of(experts, gate=nn.Linear(4, 2), one=nn.Linear(4, 4), two=nn.Linear(4, 4))
    ),
    "torch.func.vmap": on_states(lambda: Of(ensemble, net=nn.Linear(4, 4))),
    "spectral norm": on_states(lambda: normed(parametrized.spectral_norm)),
    "weight norm": on_states(lambda: normed(parametrized.weight_norm)),
    "weight norm, old": on_states(old_weight_norm),
    "orthogonal weights": on_tokens(lambda: parametrized.orthogonal(nn.Linear(4, 4))),
    "lazy layers": on_states(lazy),
    "tensors kept between calls": on_states(kept),
    "hooks": on_states(hooked),
    "returns a tuple": lambda: Returns(plain(), lambda y: (y, None)),
    "returns a dict": lambda: Returns(plain(), lambda y: {"prediction": y}),
    "returns a dataclass": lambda: Returns(plain(), Output),
    "a function": Function,
    "scripted": lambda: torch.jit.script(plain()),
    "traced": lambda: torch.jit.trace(plain(), example()),
    "exported": exported,
    "compiled": lambda: torch.compile(plain(), backend="aot_eager"),
    "double-precision weights": lambda: plain().double(),
    "bfloat16 weights": lambda: Skip(plain(), torch.bfloat16),
    "float16 weights": lambda: Skip(plain(), torch.float16),
    "whole time steps": Steps,
}
"""The architectures, by name: functions that make a network."""


def denoiser(name: str, device: torch.device | str = "cpu") -> Any:
    """Returns a network of the zoo, wrapped as a user would."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = ZOO[name]()
    if isinstance(net, Function):
        net.net.to(device)
    options: dict[str, Any] = {}
    if name == "whole time steps":
        options["time"] = lambda t: (999 * t).round().long()
    found = feasibly.wrap(net, "eps", SCHEDULE, **options)
    return found.to(device)


class Decoder(nn.Module):
    """A decoder with attention, of 64 latents to 96 values, that is nearly linear."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = attention()
        self.out = nn.Linear(D, 96, bias=False)
        self.out.weight.data = normal(96, D, seed=1).float() / 8

    def forward(self, z: Tensor) -> Tensor:
        return self.out((z + ERROR * self.attention(z).tanh()).flatten(1))


TOLERANCE = 1e-6


class Answer(NamedTuple):
    """The exact mean and covariance of samples under a constraint, and how many directions are
    free."""

    mean: Tensor
    covariance: Tensor
    free: int


def conditioned(A: Tensor, y: Tensor, noise: float = 0.0) -> Answer:
    """The mixture, given A x = y with errors of a standard deviation."""
    S = A @ COVARIANCE @ A.T + noise**2 * torch.eye(len(A), dtype=A.dtype)
    gain = torch.linalg.solve(S, A @ COVARIANCE).T
    modes = torch.stack([MODE, -MODE])
    gaps = y - modes @ A.T
    weights = (-(gaps * torch.linalg.solve(S, gaps.T).T).sum(dim=1) / 2).softmax(dim=0)
    means = modes + gaps @ gain.T
    mean = weights @ means
    apart = means - mean
    covariance = COVARIANCE - gain @ A @ COVARIANCE + apart.T * weights @ apart
    return Answer(mean, covariance, D if noise else D - len(A))


TRUTH = MODE + BASIS * VARIANCES.sqrt() @ normal(D, seed=2)
ROWS = normal(60, D, seed=3) / 8


def linear(m: int) -> tuple[Constraint, Answer]:
    A = ROWS[:m]
    y = A @ TRUTH
    return Linear(A, y, tolerance=TOLERANCE), conditioned(A, y)


def nonlinear() -> tuple[Constraint, Answer]:
    """A function that rises: its one zero is that of a linear value."""
    a, y = ROWS[:1], ROWS[:1] @ TRUTH

    def residual(x: Tensor) -> Tensor:
        v = x.flatten(1) @ a.T.to(x) - y.to(x)
        return v + v**3

    return Equality(residual, tolerance=TOLERANCE), conditioned(a, y)


def noisy() -> tuple[Constraint, Answer]:
    A = ROWS[:4]
    y = A @ TRUTH
    return Linear(A, y, noise=0.3), conditioned(A, y, 0.3)


def decoded(m: int, device: torch.device | str) -> tuple[Constraint, Answer]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        decode = Decoder().eval().requires_grad_(False)
    A = decode.out.weight.double()[:m]
    y = decode(TRUTH.float().reshape(1, *SHAPE))[0, :m]
    on = Equality(lambda u: u[:, :m] - y.to(u), tolerance=TOLERANCE)
    return Decoded(on, decode.to(device)), conditioned(A, y.double())


PROBLEMS: dict[str, Callable[..., tuple[Constraint, Answer]]] = {
    **{f"{m} linear": partial(linear, m) for m in (1, 4, 10, 16, 32, 40)},
    "nonlinear": nonlinear,
    "noise": noisy,
    **{f"{m} decoded": partial(decoded, m) for m in (20, 60)},
}
"""What makes a constraint, and what its samples should be, by name."""


def problem(name: str, device: torch.device | str = "cpu") -> tuple[Constraint, Answer]:
    """Returns a constraint, and the mean and covariance of its samples."""
    make = PROBLEMS[name]
    return make(device=device) if "decoded" in name else make()


def wrong(samples: Tensor, answer: Answer) -> tuple[float, float]:
    """Returns how far samples are from the answer.

    Returns:
        The squared distance of their mean from the exact one, in units of what is expected of so
        many; and the square root of their total variance over the exact one. Both should be one.
    """
    x = samples.flatten(1).double().cpu()
    total = answer.covariance.trace()
    apart = (x.mean(dim=0) - answer.mean).square().sum() * len(x) / total
    return apart.item(), (x.var(dim=0).sum() / total).sqrt().item()
