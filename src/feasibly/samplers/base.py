"""What every method shares: the update rules PREDICT and RENOISE, and the contract of a step."""

__all__ = [
    "CHOSEN",
    "Method",
    "Randn",
    "Start",
    "Step",
    "bisected",
    "described",
    "passed",
    "watching",
]

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ..arguments import fit_fields, whole
from ..network import Network
from ..problem import DryRun, Problem
from ..randomness import MemberNoise
from ..result import Weights

Randn = Callable[[Tensor], Tensor]
"""Returns standard normal noise in the shape of its argument."""

OUTPUTS = ("state", "denoised", "projected")
SPACINGS = ("time", "noise")
CHOSEN: Any = None  # an option that a method chooses when it is bound
SECTIONS, ROUNDS = 32, 12  # of the search for the time of a noise level, to the last bit


class Start(NamedTuple):
    """Where a trajectory begins.

    Attributes:
        x: The states, with shape (B, *).
        times: The times to go through, from that of the states down to 0, with shape (K).
        memory: What the first step has to know besides; None for nothing.
        statistics: What beginning cost or met, as numbers to be summed over a run.
        population: The importance weights that the states were drawn by; None for none.
    """

    x: Tensor
    times: Tensor
    memory: Any = None
    statistics: Mapping[str, float] = MappingProxyType({})
    population: Weights | None = None


class Step(NamedTuple):
    """What a step returns.

    Attributes:
        x: The states that it reached, with shape (B, *).
        x_0: The clean estimates behind them, with shape (B, *).
        memory: What the next step has to know besides; None for nothing.
    """

    x: Tensor
    x_0: Tensor
    memory: Any = None


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    r"""Goes from noise, at :math:`t = 1`, to samples, at :math:`t = 0`, step by step.

    A method is an immutable value of options, which holds no problem. :meth:`bind` returns its
    kernel: the method on one problem, whose `denoiser` and `constraint` its steps may use. A new
    method writes :meth:`step`, and composes it of :meth:`predict` and :meth:`renoise`. What a step
    needs of earlier ones is in its `memory`. The output is one of

    * `state`: the state :math:`x_0` of the last step, with the noise :math:`\sigma_0` in it;
    * `denoised`: its denoised mean :math:`d(x_0)`, for one evaluation more;
    * `projected`: the clean estimate behind the last step. A method that projects has
      projected it.

    Arguments:
        steps: The number :math:`T` of diffusion steps.
        spacing: Where the steps are: `time` for times uniform in :math:`[0, 1]`, `noise` for
            noise levels :math:`\sigma / \alpha` uniform in their logarithm, whatever the
            schedule.
        eta: The share of fresh noise in a prediction: 0 is DDIM, 1 is DDPM.
        output: What to return: `state`, `denoised` or `projected`.
        problem: What :meth:`bind` binds it to; None for a method. Kernels are compared by their
            options alone.

    Raises:
        ValueError: If an option is out of range, or the method does not fit the problem.

    Example:
        >>> method = feasibly.Ancestral(steps=4, spacing="time")
        >>> method.times().tolist()
        [1.0, 0.75, 0.5, 0.25, 0.0]
    """

    enforces: ClassVar[bool] = True  # the constraint; else it is only reported
    lands: ClassVar[bool] = True  # on the constraint, and not only around it
    takes_noise: ClassVar[bool] = False  # of observations, and not only exact ones
    one_target: ClassVar[bool] = False  # whether samples with targets of their own are refused
    # for samples that end infeasible, of which a projection does not tell more
    advice: ClassVar[str] = "Allow more `steps`, or use method='auto'."
    shares: ClassVar[bool] = False  # weights between samples
    chooses: ClassVar[bool] = False  # options when it is bound, which needs a survey
    attempts: ClassVar[int] = (
        1  # how often a sample that fails is sampled, if nothing else is said
    )
    # a method's row in the paper's Table 1
    space: ClassVar[str | None] = None  # what the constraint moves, "x_t" or "x_0"
    renoises: ClassVar[bool] = False  # whether the step adds noise after that, in its defaults
    differentiates: ClassVar[bool] = False  # the denoiser

    steps: int = 64
    spacing: str = "time"
    eta: float = 1.0
    output: str = "denoised"
    problem: Problem | None = field(default=None, repr=False, compare=False)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # else a dataclass would write one of its own
            cls.__repr__ = Method.__repr__

    def __post_init__(self) -> None:
        name = type(self).__name__
        fit_fields(self)
        self._at_least(1, "steps")
        if not 0 <= self.eta <= 1:
            raise ValueError(f"{name}(eta=...) must lie in [0, 1], got {self.eta}.")
        if self.spacing not in (*SPACINGS, CHOSEN):
            raise ValueError(
                f"{name}(spacing=...) must be 'time' or 'noise', got {self.spacing!r}."
            )
        if self.output not in OUTPUTS:
            raise ValueError(
                f"{name}(output=...) must be 'state', 'denoised' or 'projected', got "
                f"{self.output!r}."
            )
        if self.problem is not None:
            self.check(self.problem)

    def bind(self, problem: Problem, survey: Any = None) -> "Method":
        """Returns the kernel: the method on a problem.

        Arguments:
            problem: The problem.
            survey: What unconditional samples show of it, a
                :class:`Survey <feasibly.survey.Survey>`, by which a method may choose what is not
                given as an option; None if they were not sampled.

        Raises:
            ValueError: If the method does not fit the problem.
        """
        return replace(self, problem=problem)

    def check(self, problem: Problem) -> None:
        """Refuses a problem that the method does not fit.

        Raises:
            ValueError: If it does not.
        """
        name, constraint = type(self).__name__, problem.constraint
        if not self.enforces:
            return
        if constraint is None:
            raise ValueError(f"{name} needs a constraint; without one use Ancestral().")
        if constraint.noisy is not None and not self.takes_noise:
            raise ValueError(
                f"{name} takes exact constraints only, but {constraint!r} has noise, which it "
                "would ignore. Of the methods, 'auto', 'calibrated', 'smc', 'mmps' and 'dps' take "
                "noise."
            )

    @property
    def denoiser(self) -> Network:
        """The problem's denoiser."""
        return self.bound_to.denoiser

    @property
    def constraint(self) -> Any:
        """The problem's :class:`Constraint`; None for none."""
        return self.bound_to.constraint

    @property
    def bound_to(self) -> Problem:
        """The problem of a kernel.

        Raises:
            ValueError: If it is a method.
        """
        if self.problem is None:
            raise ValueError(
                f"{type(self).__name__} is not bound to a problem; use `method.bind(problem)`."
            )
        return self.problem

    @abstractmethod
    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        r"""Goes from time `t` to time `s` < `t`.

        Arguments:
            x_t: The states, with shape :math:`(B, *)`.
            t: The time of the states, with shape :math:`()`.
            s: The time to go to, with shape :math:`()`.
            randn: Where the noise comes from.
            memory: What :meth:`begin` or the step before returned as such.
        """

    def prepare(self, seen: DryRun) -> Self:
        """Returns the kernel with what it has to find out before a run; itself by default.

        Raises:
            ValueError: If the method does not fit the problem.
        """
        return self

    def begin(self, noise: MemberNoise) -> Start:
        r"""Samples the states :math:`x_1 \sim p(x_1)`; see :meth:`Network.begin`."""
        times = self.times(noise.dtype, noise.device)
        return Start(self.denoiser.begin(noise(), times[0]), times)

    def times(
        self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Returns the times of all steps, from 1 to 0; with shape (T + 1) if none is left out."""
        if self.spacing == "time":
            return torch.linspace(1, 0, self.steps + 1, dtype=dtype, device=device)
        ends = self.log_level(torch.tensor([1.0, 0.0], dtype=torch.float64, device=device))
        times = self.times_at(self.spaced(*ends))
        times[0], times[-1] = 1.0, 0.0
        return times.to(dtype)

    def spaced(self, highest: Tensor, lowest: Tensor) -> Tensor:
        """Returns the logarithms of the noise levels of all steps, with shape (T + 1), for
        `spacing="noise"`, given those of the schedule's ends."""
        share = torch.linspace(0, 1, self.steps + 1, dtype=highest.dtype).to(highest)
        return torch.lerp(highest, lowest, share)

    def times_at(self, log_levels: Tensor) -> Tensor:
        """Returns the times at which :meth:`log_level` has these values, with their shape. The
        values are float64, and within the schedule's."""
        ends = torch.zeros_like(log_levels), torch.ones_like(log_levels)
        return bisected(self.log_level, log_levels, *ends)

    @property
    def taken(self) -> int:
        """The number of steps that a run takes; fewer than `steps` if some are left out."""
        return self.steps

    def index(self, t: Tensor) -> int:
        """Returns how many steps lead to time `t`."""
        return int((self.times(t.dtype) - t.item()).abs().argmin())

    def estimate(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""Returns the clean estimate of the states :math:`x_t`: the denoiser's."""
        return self.denoiser(x_t, t)

    def predict(self, x_t: Tensor, x_0: Tensor, t: Tensor, s: Tensor, randn: Randn) -> Tensor:
        r"""PREDICT: samples :math:`x_s` given :math:`x_t` and an estimate :math:`x_0`.

        .. math::
            x_s = \alpha_s x_0 + \sigma_s \left(\sqrt{1 - \tau} \, \frac{x_t - \alpha_t x_0}
            {\sigma_t} + \sqrt{\tau} \, \epsilon\right), \qquad \tau = \eta \left(1 -
            \frac{\alpha_t^2 \sigma_s^2}{\alpha_s^2 \sigma_t^2}\right)

        References:
            | Denoising Diffusion Implicit Models (Song et al., 2021)
            | https://arxiv.org/abs/2010.02502
        """
        mean, std = self.transition(x_t, x_0, t, s)
        return mean + std * randn(x_t) if self.eta > 0 else mean

    def transition(self, x_t: Tensor, x_0: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean of a prediction, in the shape of `x_t`, and its standard deviation."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        alpha_s, sigma_s = self.denoiser.schedule(s)
        tau = self.eta * (1 - (alpha_t / alpha_s * sigma_s / sigma_t) ** 2)
        z_s = torch.sqrt(1 - tau) * (x_t - alpha_t * x_0) / sigma_t
        return alpha_s * x_0 + sigma_s * z_s, sigma_s * torch.sqrt(tau)

    def reach(self, t: Tensor, s: Tensor) -> Tensor:
        """Returns how far a prediction's mean goes if the estimate goes by one."""
        return self.transition(torch.zeros_like(t), torch.ones_like(t), t, s)[0]

    def renoise(self, x_0: Tensor, t: Tensor, randn: Randn) -> Tensor:
        r"""RENOISE: samples :math:`x_t \sim p(x_t \mid x_0)`, with fresh noise."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        return alpha_t * x_0 + sigma_t * randn(x_0)

    def read(self, x_t: Tensor, x_0: Tensor, t: Tensor) -> Tensor:
        """Returns the output, given the last state and the clean estimate behind it."""
        if self.output == "state":
            return x_t
        return x_0 if self.output == "projected" else self.denoiser(x_t, t)

    def finish(self, x_0: Tensor) -> Tensor:
        """Returns the samples, given the output; the same by default."""
        return x_0

    def warnings(self, statistics: Mapping[str, float]) -> Iterator[str]:
        """Yields what a user must know of a run, given its summed statistics."""
        yield from ()

    def cost(self, residuals: int) -> tuple[int, int]:
        r"""Returns the most forward and backward evaluations of a step, for :math:`m`
        residuals."""
        return 1, 0

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        r"""Returns the most forward and backward evaluations of an attempt, for a batch.

        Samples that are feasible already may need none, so that an attempt may take fewer.

        Arguments:
            residuals: The number :math:`m` of residuals, on which the cost may depend.
        """
        forward, backward = self.cost(residuals)
        last = 1 if self.output == "denoised" else 0
        return self.taken * forward + last, self.taken * backward

    def expected(self, residuals: int = 1) -> tuple[float, float]:
        """Returns the forward and backward evaluations that an attempt is expected to take for a
        sample: the budget, but for what most samples do not need."""
        return self.budget(residuals)

    @property
    def noise(self) -> float:
        """The standard deviation that the method gives a residual on purpose; 0 by default."""
        return 0.0

    @property
    def stop(self) -> float:
        r"""The :math:`\|r\|^2` at which a minimizer may stop: well inside the tolerance, so that
        a sample is feasible whatever the rounding of its last evaluation. A sample of PPR that
        gains no more may end nearer to the tolerance."""
        return 0.0 if self.constraint is None else 0.1 * self.constraint.tolerance

    def scale(self, t: Tensor) -> Tensor:
        r"""Returns :math:`\sqrt{\alpha_t^2 + \sigma_t^2}`, the size of a state of unit data."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        return torch.sqrt(alpha_t**2 + sigma_t**2)

    def noise_level(self, t: Tensor) -> float:
        r"""Returns the noise level :math:`\sigma_t / \alpha_t`, relative to the signal."""
        return self.denoiser.noise_level(t)

    def log_level(self, t: Tensor) -> Tensor:
        r"""Returns :math:`\log(\sigma_t / \alpha_t)`, with the shape of `t`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        return (sigma_t / alpha_t).log()

    def __repr__(self) -> str:
        return described(self)

    def _at_least(self, least: int, *names: str) -> None:
        """Refuses parameters that are not whole numbers of at least `least`, and makes those of
        other libraries Python's."""
        for name in names:
            if getattr(self, name) is CHOSEN:
                continue
            number = whole(name, getattr(self, name), least, of=type(self).__name__)
            object.__setattr__(self, name, number)


def bisected(
    function: Callable[[Tensor], Tensor], values: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """Returns where an increasing function has the given values, between bounds, all with one
    shape. It is bisection, with several points at once."""
    shape = values.shape
    values, low, high = (each.reshape(1, -1) for each in (values, low, high))
    share = torch.linspace(0, 1, SECTIONS + 1, dtype=low.dtype, device=low.device)[:, None]
    for _ in range(ROUNDS):
        at = torch.lerp(low, high, share)
        inside = at[1:-1]
        found = function(inside.reshape(-1)).view_as(inside)
        k = (found < values).sum(dim=0, keepdim=True)
        low, high = at.gather(0, k), at.gather(0, k + 1)
    return ((low + high) / 2).reshape(shape)


def described(method: Method) -> str:
    """Returns a method in words: its options and, of a kernel, its constraint. Results and stores
    know it by these words, which leave out options that are not chosen, and quiet ones as they
    are by default."""
    options = ", ".join(
        f"{f.name}={option!r}"
        for f in fields(method)
        if f.repr
        for option in [getattr(method, f.name)]
        if option is not CHOSEN and option != f.metadata.get("quiet", CHOSEN)
    )
    name = f"{type(method).__name__}({options})"
    return name if method.problem is None else f"{name} with {method.problem.constraint!r}"


Watch = Callable[[Tensor, Tensor, Tensor], None]
_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def passed(x: Tensor, x_0: Tensor, s: Tensor) -> None:
    """Tells the run of a step that a kernel takes while it begins.

    Arguments:
        x: A state of each sample, with shape (B, *).
        x_0: The clean estimates behind them, with shape (B, *).
        s: The time that they reached.
    """
    watch = _WATCH.get()
    if watch is not None:
        with watching(None):  # what a callback samples is another run
            watch(x, x_0, s)


@contextmanager
def watching(watch: Watch | None) -> Generator[None]:
    """Has a function called with what :func:`passed` tells within."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)
