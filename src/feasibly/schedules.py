r"""Noise schedules: :math:`t \mapsto (\alpha_t, \sigma_t)`.

A schedule defines the forward kernel
:math:`p(x_t \mid x_0) = \mathcal{N}(\alpha_t x_0, \sigma_t^2 I)` with :math:`t \in [0, 1]`. At
:math:`t = 0` data is (almost) clean, at :math:`t = 1` it is (almost) pure noise. Any such callable
is a schedule, including those of azula.
"""

__all__ = [
    "EDM",
    "VE",
    "VP",
    "Cosine",
    "Flow",
    "LogLogit",
    "Rectified",
    "RectifiedVE",
    "Schedule",
    "SubVP",
    "clock",
    "rates",
]

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from .arguments import typed


class Schedule(ABC):
    r"""The interface of a noise schedule: a callable :math:`t \mapsto (\alpha_t, \sigma_t)`.

    Example:
        >>> class Exponential(feasibly.schedules.Schedule):
        ...     def __call__(self, t):
        ...         return torch.ones_like(t), 10 ** (4 * t - 2)
        >>> _, sigma = Exponential()(torch.tensor([0.0, 0.5, 1.0]))
        >>> [round(s, 3) for s in sigma.tolist()]
        [0.01, 1.0, 100.0]
    """

    @abstractmethod
    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the signal scale :math:`\alpha_t` and the noise scale :math:`\sigma_t` at times
        `t` in [0, 1], both with the shape of `t`."""

    def time(self, t: Tensor) -> Tensor:
        r"""Returns the time on the network's own clock, which it is conditioned on at `t`."""
        return t

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={v:g}" for k, v in vars(self).items())
        return f"{type(self).__name__}({arguments})"


def clock(schedule: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
    r"""Returns :meth:`Schedule.time` of a schedule; the identity if it has no such method.

    Example:
        >>> clock = feasibly.schedules.clock(feasibly.schedules.Flow())
        >>> round(clock(torch.tensor(0.25)).item(), 3)
        0.75
    """
    return getattr(schedule, "time", lambda t: t)


@torch.inference_mode(False)
def rates(schedule: Callable[[Tensor], tuple[Tensor, Tensor]], t: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns the derivatives :math:`\alpha'` and :math:`\sigma'` at time `t`, in its shape, with
    respect to the schedule's own clock. What has no gradient is differentiated by differences.

    Example:
        >>> flow = feasibly.schedules.Rectified()
        >>> d_alpha, d_sigma = feasibly.schedules.rates(flow, torch.tensor(0.5))
        >>> round(d_alpha.item(), 3), round(d_sigma.item(), 3)
        (-1.0, 1.0)
    """
    d_alpha, d_sigma = (_slope(lambda t, k=k: schedule(t)[k], t) for k in (0, 1))
    d_time = _slope(clock(schedule), t)
    return d_alpha / d_time, d_sigma / d_time


def _slope(f: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """Returns the derivative of a function of single times at each of them."""
    t = t.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = f(t)
    if value.requires_grad:
        return torch.autograd.grad(value.sum(), t)[0]
    h = torch.finfo(value.dtype).eps ** (1 / 3)
    with torch.no_grad():
        above, below = (t + h).clamp_max(1), (t - h).clamp_min(0)
        return (f(above) - f(below)).to(t) / (above - below)


def _need(holds: bool, message: str) -> None:
    """Refuses parameters of a schedule."""
    if not holds:
        raise ValueError(message)


class _Exploding(Schedule):
    r"""A schedule with :math:`\alpha_t = 1` and noise from about `sigma_min` to `sigma_max`."""

    def __init__(self, sigma_min: float, sigma_max: float) -> None:
        _need(
            0 < sigma_min < sigma_max < math.inf,
            f"{type(self).__name__} needs 0 < sigma_min < sigma_max, got sigma_min={sigma_min}, "
            f"sigma_max={sigma_max}.",
        )
        self.sigma_min, self.sigma_max = sigma_min, sigma_max

    @abstractmethod
    def sigma(self, t: Tensor) -> Tensor:
        r"""Returns :math:`\sigma_t`."""

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(t), self.sigma(t)


class LogLogit(_Exploding):
    r"""The paper's schedule (Appendix B), with :math:`\alpha_t = 1` and

    .. math::
        \log \sigma_t = s \, \mathrm{logit}\big(t (1 - 2 \varepsilon) + \varepsilon\big)
            + \log \sqrt{\sigma_{\min} \sigma_{\max}}, \qquad
        \varepsilon = \sqrt{\sigma_{\min} / \sigma_{\max}}^{\,1 / s} .

    The paper writes the exponent of :math:`\varepsilon` as :math:`1 / \alpha` and lists only the
    spread :math:`s`. With :math:`\alpha = s` the ends are as intended, up to the factor
    :math:`(1 - \varepsilon)^{\mp s}`. For the defaults (Data2D) they are
    :math:`\sigma_0 = 1.123 \times 10^{-3}` and :math:`\sigma_1 = 89.07`.

    Arguments:
        sigma_min: The lower noise scale.
        sigma_max: The upper noise scale.
        spread: The spread :math:`s`. With a larger one, more time is spent at both ends.

    Example:
        >>> _, sigma = feasibly.schedules.LogLogit()(torch.tensor([0.0, 0.5, 1.0]))
        >>> [float(f"{s:.3g}") for s in sigma.tolist()]
        [0.00112, 0.316, 89.1]
    """

    @typed
    def __init__(
        self, sigma_min: float = 1e-3, sigma_max: float = 1e2, spread: float = 2.0
    ) -> None:
        super().__init__(sigma_min, sigma_max)
        most = math.log2(sigma_max / sigma_min) / 2
        _need(  # above, eps > 1/2 and the noise would fall with time
            0 < spread < most,
            f"LogLogit needs a spread between 0 and {most:.3g} for these ends, got {spread}.",
        )
        self.spread = spread

    def sigma(self, t: Tensor) -> Tensor:
        eps = math.sqrt(self.sigma_min / self.sigma_max) ** (1 / self.spread)
        log_median = math.log(self.sigma_min * self.sigma_max) / 2
        return (self.spread * torch.logit(t * (1 - 2 * eps) + eps) + log_median).exp()


class VE(_Exploding):
    r"""Variance exploding: :math:`\alpha_t = 1`,
    :math:`\sigma_t = \sigma_{\min}^{1 - t} \sigma_{\max}^t`.

    References:
        | Score-Based Generative Modeling through SDEs (Song et al., 2021)
        | https://arxiv.org/abs/2011.13456

    Example:
        >>> schedule = feasibly.schedules.VE(sigma_min=0.01, sigma_max=100.0)
        >>> [round(sigma.item(), 3) for sigma in schedule(torch.tensor([0.0, 0.5, 1.0]))[1]]
        [0.01, 1.0, 100.0]
    """

    @typed
    def __init__(self, sigma_min: float = 1e-3, sigma_max: float = 1e2) -> None:
        super().__init__(sigma_min, sigma_max)

    def sigma(self, t: Tensor) -> Tensor:
        return ((1 - t) * math.log(self.sigma_min) + t * math.log(self.sigma_max)).exp()


class EDM(_Exploding):
    r"""The schedule of EDM, with :math:`\alpha_t = 1` and

    .. math::
        \sigma_t = \Big((1 - t) \sigma_{\min}^{1 / \rho} + t \sigma_{\max}^{1 / \rho}\Big)^\rho .

    References:
        | Elucidating the Design Space of Diffusion-Based Generative Models (Karras et al., 2022)
        | https://arxiv.org/abs/2206.00364

    Example:
        >>> alpha, sigma = feasibly.schedules.EDM()(torch.tensor([0.0, 1.0]))
        >>> alpha.tolist(), [round(s, 3) for s in sigma.tolist()]
        ([1.0, 1.0], [0.002, 80.0])
    """

    @typed
    def __init__(self, sigma_min: float = 2e-3, sigma_max: float = 80.0, rho: float = 7.0) -> None:
        super().__init__(sigma_min, sigma_max)
        _need(rho > 0, f"EDM needs a positive rho, got {rho}.")
        self.rho = rho

    def sigma(self, t: Tensor) -> Tensor:
        low, high = self.sigma_min ** (1 / self.rho), self.sigma_max ** (1 / self.rho)
        return ((1 - t) * low + t * high) ** self.rho


class VP(Schedule):
    r"""Variance preserving, with the linear :math:`\beta` of DDPM:

    .. math::
        \log \alpha_t = - \tfrac{1}{4} t^2 (\beta_1 - \beta_0) - \tfrac{1}{2} t \beta_0, \qquad
        \sigma_t = \sqrt{1 - \alpha_t^2} ,

    where :math:`t` is first mapped onto :math:`[\tau, 1]`, since :math:`\sigma = 0` at zero.

    References:
        | Score-Based Generative Modeling through SDEs (Song et al., 2021), Appendix C
        | https://arxiv.org/abs/2011.13456

    Example:
        >>> alpha, sigma = feasibly.schedules.VP()(torch.tensor(0.5))
        >>> round((alpha**2 + sigma**2).item(), 4), round(alpha.item(), 3)
        (1.0, 0.281)
    """

    @typed
    def __init__(self, beta_0: float = 0.1, beta_1: float = 20.0, tau: float = 1e-4) -> None:
        _need(0 < beta_0 < beta_1, f"VP needs 0 < beta_0 < beta_1, got {beta_0}, {beta_1}.")
        _need(0 < tau < 1, f"VP needs tau in (0, 1), got {tau}.")
        self.beta_0, self.beta_1, self.tau = beta_0, beta_1, tau

    def time(self, t: Tensor) -> Tensor:
        return self.tau + (1 - self.tau) * t

    def log_alpha(self, t: Tensor) -> Tensor:
        r"""Returns :math:`\log \alpha_t`."""
        t = self.time(t)
        return -(t**2) * (self.beta_1 - self.beta_0) / 4 - t * self.beta_0 / 2

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        log_alpha = self.log_alpha(t)
        # expm1 keeps sigma_t accurate where alpha_t is close to one
        return log_alpha.exp(), torch.sqrt(-torch.expm1(2 * log_alpha))


class SubVP(VP):
    r"""Sub-variance preserving: :math:`\alpha_t` of :class:`VP`, and
    :math:`\sigma_t = 1 - \alpha_t^2`; see there for the source.

    Example:
        >>> alpha, sigma = feasibly.schedules.SubVP()(torch.tensor(0.5))
        >>> round((alpha**2 + sigma).item(), 4)
        1.0
    """

    @typed
    def __init__(self, beta_0: float = 0.1, beta_1: float = 20.0, tau: float = 1e-3) -> None:
        super().__init__(beta_0, beta_1, tau)

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        log_alpha = self.log_alpha(t)
        return log_alpha.exp(), -torch.expm1(2 * log_alpha)


class Cosine(Schedule):
    r"""The cosine schedule: :math:`\alpha_t = \cos \theta_t`, :math:`\sigma_t = \sin \theta_t`.

    The angle :math:`\theta_t` runs linearly from `tau` to :math:`\pi / 2 -` `tau`, which keeps
    both scales positive.

    References:
        | Improved Denoising Diffusion Probabilistic Models (Nichol & Dhariwal, 2021)
        | https://arxiv.org/abs/2102.09672

    Example:
        >>> alpha, sigma = feasibly.schedules.Cosine()(torch.tensor([0.5]))
        >>> round(alpha.item(), 4), round(sigma.item(), 4)
        (0.7071, 0.7071)
    """

    @typed
    def __init__(self, tau: float = 1e-3) -> None:
        _need(0 < tau < math.pi / 4, f"Cosine needs tau in (0, pi/4), got {tau}.")
        self.tau = tau

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        theta = self.tau + (math.pi / 2 - 2 * self.tau) * t
        return torch.cos(theta), torch.sin(theta)


class Rectified(Schedule):
    r"""Rectified flow: :math:`\alpha_t = 1 - t`, :math:`\sigma_t = t`.

    The time is first mapped onto [`tau`, 1 - `tau`], which keeps both scales positive.

    References:
        | Flow Straight and Fast (Liu et al., 2023)
        | https://arxiv.org/abs/2209.03003

    Example:
        >>> alpha, sigma = feasibly.schedules.Rectified()(torch.tensor([0.0, 0.5, 1.0]))
        >>> [round(a, 3) for a in alpha.tolist()], [round(s, 3) for s in sigma.tolist()]
        ([0.999, 0.5, 0.001], [0.001, 0.5, 0.999])
    """

    @typed
    def __init__(self, tau: float = 1e-3) -> None:
        _need(0 < tau < 0.5, f"Rectified needs tau in (0, 1/2), got {tau}.")
        self.tau = tau

    def time(self, t: Tensor) -> Tensor:
        return self.tau + (1 - 2 * self.tau) * t

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        t = self.time(t)
        return 1 - t, t


class RectifiedVE(_Exploding):
    r"""Rectified flow in variance-exploding form, :math:`\alpha_t = 1` and

    .. math:: \sigma_t = \frac{t + (1 - t) \sigma_{\min}}{1 - t + t / \sigma_{\max}} ,

    which is :math:`t / (1 - t)` except near its ends. It is the default of Appa.

    References:
        | Appa: Bending Weather Dynamics with Latent Diffusion Models for Global Data Assimilation
        | (Andry et al., 2025), https://arxiv.org/abs/2504.18720

    Example:
        >>> alpha, sigma = feasibly.schedules.RectifiedVE()(torch.tensor([0.5]))
        >>> alpha.item(), round(sigma.item(), 2)
        (1.0, 1.0)
    """

    @typed
    def __init__(self, sigma_min: float = 1e-3, sigma_max: float = 1e3) -> None:
        super().__init__(sigma_min, sigma_max)

    def sigma(self, t: Tensor) -> Tensor:
        return (t + (1 - t) * self.sigma_min) / ((1 - t) + t / self.sigma_max)


class Flow(Schedule):
    r"""The path of a flow from noise, at :math:`s = 0`, to data, at :math:`s = 1`:

    .. math:: x_s = A(s) \, x_{\mathrm{data}} + S(s) \, \epsilon, \qquad s = 1 - t .

    The time :math:`s` is the network's own clock. It is kept in [`tau`, 1 - `tau`], where both
    scales are positive.

    References:
        | Flow Matching for Generative Modeling (Lipman et al., 2023)
        | https://arxiv.org/abs/2210.02747

    Arguments:
        A: The signal scale, a differentiable function of tensors. The default is :math:`s`.
        S: The noise scale, likewise. The default is :math:`1 - s`.
        tau: The distance from the ends.

    Example:
        >>> flow = feasibly.schedules.Flow()
        >>> t = torch.tensor(0.25)  # the network's own time runs from noise to data
        >>> round(flow.time(t).item(), 3), round(flow(t)[0].item(), 3), round(flow(t)[1].item(), 3)
        (0.75, 0.75, 0.25)
    """

    @typed
    def __init__(
        self,
        A: Callable[[Tensor], Tensor] | None = None,
        S: Callable[[Tensor], Tensor] | None = None,
        tau: float = 1e-3,
    ) -> None:
        _need(0 < tau < 0.5, f"Flow needs tau in (0, 1/2), got {tau}.")
        self.A, self.S, self.tau = A, S, tau

    def time(self, t: Tensor) -> Tensor:
        return 1 - self.tau - (1 - 2 * self.tau) * t

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        s = self.time(t)
        return s if self.A is None else self.A(s), 1 - s if self.S is None else self.S(s)

    def __repr__(self) -> str:
        scales = "" if (self.A, self.S) == (None, None) else "A, S, "
        return f"Flow({scales}tau={self.tau:g})"
