r"""What a constraint says of noisy states: the likelihood :math:`h` and the move."""

__all__ = ["Guide", "Twist"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..constraints.base import Constraint, Intervals
from ..constraints.decoded import is_decoded
from ..members import among
from ..minimizers.base import finite, per_sample
from ..network import Network
from ..problem import Problem
from .base import Randn
from .levels import Levels
from .normals import inside, positive
from .principal import Alike, Principal, given, principal
from .slopes import (
    LARGE,
    Common,
    Slopes,
    across,
    blocks,
    followed,
    mapped,
    products,
    rows,
    spanned,
    whitened,
)

MOST = 12
"""The most values that are weighted, unless there are more equalities: those nearest to a bound.
More equalities are taken as normal in a step."""

STATES = 16  # of a step at which products with the covariance are taken, under many values
HEAVY = 1.5  # degrees of freedom of a value that varies by curvature alone
FLOOR = 1e-3  # the least variance of a value, relative to that of white noise
RIDGE = 0.05  # the same for a move into intervals, several of which may have one direction
FARTHEST = 10.0  # how many standard deviations of a step a particle is moved at most


class Twist(NamedTuple):
    r"""What the constraint says of states.

    Attributes:
        x_0: The denoiser's estimates, with shape (B, *).
        move: How far the constraint moves them, with shape (B, *).
        log_h: The log-likelihood :math:`\log h` of the constraint, but for a constant, with
            shape (B).
        values: The values as normal steps take them; empty without such steps.
        slopes: The derivatives of the values; None where the constraint says nothing.
    """

    x_0: Tensor
    move: Tensor
    log_h: Tensor
    values: tuple[Any, ...] = ()
    slopes: Slopes | None = None

    def only_estimates(self) -> Self:
        """Returns it without moves and derivatives, which may be large."""
        return self._replace(move=self.move[:, :0], values=(), slopes=None)


class Seen(NamedTuple):
    r"""What the denoiser and the constraint tell of states.

    Attributes:
        x_0: The denoiser's estimates, with shape (B, *).
        good: Which states are finite, with shape (B).
        values: The values' means over the noise of curvature, their bounds, and the variances of
            their errors; None, as is all below, where the constraint says nothing.
        curved: Their covariance by curvature alone, with shape (B, m, m).
        J: Their derivatives, with shape (B, m, D).
        VJ: The products of these with the covariance of a sample, likewise; None if they follow
            from the step before.
        kept: Which values they are, with shape (B, m); None for all.
    """

    x_0: Tensor
    good: Tensor
    values: Intervals | None = None
    curved: Tensor | None = None
    J: Tensor | None = None
    VJ: Tensor | None = None
    kept: Tensor | None = None

    @property
    def size(self) -> int:
        """The number of elements of the derivatives, or of the estimates without them."""
        return self.x_0.numel() if self.J is None else self.J.numel()


@dataclass(frozen=True)
class Guide:
    """What the constraint of a problem says of states.

    Attributes:
        problem: The problem.
        levels: The noise levels.
        normal: Whether a step of particles may take values as normal.
    """

    problem: Problem
    levels: Levels
    normal: bool

    @property
    def denoiser(self) -> Network:
        """The problem's denoiser."""
        return self.problem.denoiser

    @property
    def constraint(self) -> Constraint:
        """The problem's constraint."""
        assert self.problem.constraint is not None
        return self.problem.constraint

    def twist(
        self,
        x_t: Tensor,
        t: Tensor,
        around: Sequence[Tensor] = (),
        before: Slopes | None = None,
        *,
        of: Tensor | None = None,
        common: bool = False,
    ) -> Twist:
        """Returns what the constraint says of states; above `levels.weighted` nothing.

        Arguments:
            x_t: The states, with shape (B, *).
            t: Their time.
            around: Noises that tell the curvature, each with shape (1, *); none for a linear
                constraint.
            before: The slopes of the step before, of which those at `t` follow; None to take
                gradients through the denoiser.
            of: Which rows of the batch have the states' targets and conditions, with shape (B);
                None for each its own.
            common: Whether products with the covariance are taken at some of the states only.
        """
        of = torch.arange(len(x_t), device=x_t.device) if of is None else of
        parts = []
        for some in blocks(len(x_t), self.problem.batch_size or len(x_t)):
            last = before and before.at(some)
            with among(of[some]):
                parts.append((self._seen(x_t[some], t, around, last, not common), last))
        if common and parts[0][0].J is not None:
            seen = [one for one, _ in parts]
            rows = [one.J for one in seen if one.J is not None]
            known, g = self._common(x_t, t, of, seen, rows), seen[0].values
            if self._is_same and g is not None and bool((g.lower == g.upper).all()):
                whole = together([one._replace(J=None) for one in seen])
                return self._told_alike(whole, rows[0], t, known)
            VJ = [known.of(J, one.x_0) for J, one in zip(rows, seen, strict=True)]
            parts = [(one._replace(VJ=each), None) for one, each in zip(seen, VJ, strict=True)]
        # arithmetic on all at once is faster, unless it is large: then in the denoiser's batches
        if sum(seen.size for seen, _ in parts) <= LARGE:
            parts = [together(parts)]
        return together([self._told(seen, t, last) for seen, last in parts])

    @torch.enable_grad()
    def _seen(
        self,
        x_t: Tensor,
        t: Tensor,
        around: Sequence[Tensor],
        before: Slopes | None,
        gradients: bool,
    ) -> Seen:
        """Returns what the denoiser and the constraint tell of states; see :meth:`twist`."""
        good = finite(x_t)
        x_t = torch.where(per_sample(good, x_t), x_t.detach(), 0.0).requires_grad_()
        weighted = self.denoiser.noise_level(t) <= self.levels.weighted
        # without a need for it, no graph is kept from this step to the next
        gradients = gradients and weighted and before is None
        with torch.set_grad_enabled(gradients):
            mean = self.denoiser(x_t, t)
        x_0 = mean.detach()
        if not weighted:
            return Seen(x_0, good)
        alpha_t, sigma_t = self.denoiser.schedule(t)
        z = mean.detach().requires_grad_()
        g = self.constraint.intervals(z)
        above, below = self._around(x_0, (sigma_t / alpha_t).item(), around)
        kept = None if before is None else before.kept
        if before is None and len(above) and g.values.shape[1] > MOST:
            kept = urgent(g, (above - below).square().mean(dim=0).sqrt() / 2)
        if kept is not None:
            g = Intervals(*(part.gather(1, kept) for part in g if part is not None))
            above, below = (v.gather(2, kept.expand(len(v), *kept.shape)) for v in (above, below))
        J = self._derivatives(g.values, z)
        VJ = products(J, mean, x_t, sigma_t**2 / alpha_t) if gradients else None
        assert g.variance is not None
        values = Intervals(*(part.detach().double() for part in g if part is not None))
        centre = values.values
        curved = torch.zeros_like(centre).diag_embed()
        if len(above):
            bend = (above + below).double() / 2 - centre  # the slope cancels
            shift = bend.mean(dim=0)
            centre, bend = centre + shift, bend - shift
            curved = torch.einsum("pbi,pbj->bij", bend, bend) / (len(bend) - 1)
        return Seen(x_0, good, values._replace(values=centre), curved, J, VJ, kept)

    @torch.enable_grad()
    def _common(
        self, x_t: Tensor, t: Tensor, of: Tensor, seen: Sequence[Seen], rows: list[Tensor]
    ) -> Common:
        """Returns products with the covariance at some of the states, given what is seen of all
        and the derivatives of values there, in batches."""
        x_0 = torch.cat([one.x_0 for one in seen])
        J = rows[0][:1] if self._is_same else torch.cat(rows)
        good = (finite(x_t) & finite(x_0) & finite(J)).nonzero()[:, 0]
        if not len(good):
            nothing = torch.zeros_like(x_0[:1].flatten(start_dim=1)).double()
            return Common(nothing, torch.ones_like(nothing), nothing[None])
        chosen = good[torch.linspace(0, len(good) - 1, min(STATES, len(good))).long()]
        some = J if self._is_same else J[chosen]
        # so that they take no more gradients than all states would
        basis = spanned(some.flatten(end_dim=1), J.shape[1] * len(x_t) // len(chosen))
        if not len(basis):  # values are flat at these states
            basis = torch.ones_like(some[:1, 0]) / some.shape[2] ** 0.5
        alpha_t, sigma_t = self.denoiser.schedule(t)
        found = []
        for some in chosen.split(self.problem.batch_size or len(chosen)):
            x = x_t[some].detach().requires_grad_()
            with among(of[some]):
                mean = self.denoiser(x, t)
            along = basis.expand(len(some), *basis.shape)
            found.append(products(along, mean, x, sigma_t**2 / alpha_t))
        x_0, QV = x_0[chosen].flatten(start_dim=1).double(), torch.cat(found)
        good = finite(QV)
        return Common(x_0[good], basis, QV[good]) if good.any() else Common(x_0, basis, QV)

    def _derivatives(self, values: Tensor, z: Tensor) -> Tensor:
        """Returns the derivatives of values at samples, with shape (B, m, D); of linear ones once
        for all."""
        if not self._is_same:
            return rows(values, z)
        one = z[:1].detach().requires_grad_()
        return rows(self.constraint.intervals(one).values, one).expand(len(z), -1, -1)

    @torch.no_grad()
    def _told(self, seen: Seen, t: Tensor, before: Slopes | None) -> Twist:
        """Returns what the constraint says of states, given what is seen of them; see
        :meth:`twist`."""
        x_0, good, values, curved, J, VJ, kept = seen
        if values is None or curved is None or J is None:
            log_h = torch.where(good, 0.0, -math.inf).double()
            return Twist(x_0, torch.zeros_like(x_0), log_h)
        sigma = self.denoiser.noise_level(t)
        if VJ is None:
            assert before is not None
            VJ = followed(before, None if self._is_same else J, sigma)
        now = Slopes(J, VJ, sigma, kept=kept)
        centre, lower, upper, variance = values
        assert variance is not None
        noise, fixed, normal = torch.diag_embed(variance), (lower == upper)[0], None
        spare = torch.zeros_like(centre[:, 0])
        if not self._is_same:
            exact = (lower == upper) & (variance == 0)
            more, spare = across(torch.where(exact[..., None], J, 0.0), sigma)
            noise = noise + more
        if self._is_normal(fixed):
            some = slice(None) if fixed.all() else fixed
            frame = whitened(J[:, some], VJ[:, some], FLOOR * sigma**2)
            errors = (noise + curved)[:, some][:, :, some]
            normal = principal(frame, VJ[:, some], (centre - lower)[:, some], errors)
            if fixed.all():
                # the part across the range has a likelihood, and no density
                log_h = (normal.log_h + spare).nan_to_num(-math.inf, neginf=-math.inf)
                log_h = torch.where(good, log_h, -math.inf)
                return Twist(x_0, torch.zeros_like(x_0), log_h, normal, now._replace(frame=frame))
        S = J @ VJ.mT + noise
        S = (S + S.mT) / 2
        # in units in which a value's slope is one
        # or what a value's own noise makes of it, if it is nearly flat
        unit = (J.square().sum(dim=2) + variance / sigma**2).sqrt()
        unit = torch.where(unit > 0, unit, 1.0)
        centre, lower, upper = (v / unit for v in (centre, lower, upper))
        S, curved = (v / unit[:, None] / unit[..., None] for v in (S + curved, curved))
        firm = positive(S, FLOOR * sigma**2)
        freedom = None if self.constraint.linear else tails(firm, curved)
        found = inside(centre, firm, lower, upper, freedom)
        log_h = found.log_h - torch.where(lower == upper, unit, 1.0).log().sum(dim=1) + spare
        if not fixed.all():
            firm = positive(S, RIDGE * sigma**2)
        gap = torch.linalg.solve(firm, (found.mean - centre)[..., None])
        if normal is not None:  # the step meets the equalities, and the move the others
            met = (lower - centre)[:, fixed, None]
            gap[:, fixed] -= torch.linalg.solve(firm[:, fixed][:, :, fixed], met)
        gap = found.pull[:, None, None] * gap / unit[..., None]
        move = (VJ.mT @ gap).reshape(x_0.shape).to(x_0)
        # what is not finite has no weight, and is not moved
        log_h = torch.where(good, log_h.nan_to_num(-math.inf), -math.inf)
        return Twist(x_0, move.nan_to_num(0, 0, 0), log_h, normal or (), now)

    @torch.no_grad()
    def _told_alike(self, seen: Seen, J: Tensor, t: Tensor, known: Common) -> Twist:
        """As :meth:`_told`, of values with targets whose derivatives are the same at all states.
        What follows from the covariance is computed once for each state where it is known."""
        x_0, good, values, *_ = seen
        assert values is not None
        centre, lower, _, variance = values
        assert variance is not None
        J = J[:1].expand(len(known.x_0), -1, -1)
        VJ, of = known.of(J, known.x_0), known.nearest(x_0)
        frame = whitened(J, VJ, FLOOR * self.denoiser.noise_level(t) ** 2)
        law = Alike.of(frame, VJ, torch.diag_embed(variance[0]))
        good = good & centre.isfinite().all(dim=1)
        good &= law.covariance.isfinite().flatten(start_dim=1).all(dim=1)[of]
        gap = torch.where(good[:, None], centre - lower, 0.0) @ law.basis.mT
        log_h = torch.where(good, law.log_h(gap, of), -math.inf)
        return Twist(x_0, torch.zeros_like(x_0), log_h, (gap, of, law))

    @property
    def _is_same(self) -> bool:
        """Whether derivatives of the values are the same at all states."""
        return self.constraint.linear and not self.constraint.differs

    def _is_normal(self, fixed: Tensor) -> bool:
        """Whether a step takes values that have targets as normal: linear ones, and many. Weights
        would vary too much if it moved its mean alone."""
        suits = self.constraint.linear or len(fixed) > MOST
        return self.normal and suits and bool(fixed.any())

    @torch.no_grad()
    def _around(self, mean: Tensor, sigma: float, around: Sequence[Tensor]) -> Tensor:
        """Returns the constrained values of pairs of samples around the estimates, on opposite
        sides, with shape (2, P, B, m); no pairs without noises."""
        if not len(around):
            return mean.new_empty((2, 0))
        std = 1 / math.sqrt(1 / sigma**2 + 1 / self.levels.spread**2)
        noise = torch.stack(list(around))
        most = self.problem.batch_size or LARGE // mean[0].numel()  # samples at a time
        at_once = 1 if is_decoded(self.constraint) else max(1, most // len(mean))
        rows, values = torch.arange(len(mean), device=mean.device), []
        for some in (std * torch.cat([noise, -noise])).split(at_once):
            with among(rows.repeat(len(some))):
                found = self.constraint.intervals((mean + some).flatten(end_dim=1)).values
            values.append(found.unflatten(0, (len(some), -1)))
        return torch.cat(values).unflatten(0, (2, -1))

    def proposed(
        self,
        mean: Tensor,
        std: Tensor,
        shift: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn,
        values: Sequence[Any] = (),
    ) -> tuple[Tensor, Tensor]:
        r"""Samples :math:`x_s \sim q(x_s \mid x_t)`, and returns it with
        :math:`\log p(x_s \mid x_t) / q(x_s \mid x_t)`, given the mean and the standard deviation
        of :math:`p`."""
        if values:
            (alpha_t, sigma_t), (alpha_s, sigma_s) = map(self.denoiser.schedule, (t, s))
            gain = (alpha_s / sigma_s) ** 2 - (alpha_t / sigma_t) ** 2
            by = (mean, std, gain, alpha_s / sigma_s**2, randn)
            if isinstance(values[-1], Alike):
                gap, of, law = values
                return law.given(gap, of, *by)
            x, ratio = given(Principal(*values), *by)
            if not shift.any():
                return x, ratio
            noise = (x - mean) / std
        else:
            noise, ratio = randn(mean), 0.0
        step = shift / std
        size = step.flatten(start_dim=1).norm(dim=1)
        step = step * per_sample((FARTHEST / size).clamp_max(1), step)
        gain = (noise.double().square() - (noise + step).double().square()).flatten(start_dim=1)
        return mean + std * (step + noise), ratio + gain.sum(dim=1) / 2


def together(parts: Sequence[Any]) -> Any:
    """Returns nested tuples of several batches as one batch."""
    return parts[0] if len(parts) == 1 else mapped(lambda *part: torch.cat(part), *parts)


def urgent(g: Intervals, scale: Tensor) -> Tensor:
    """Returns which values are nearest to a bound, or farthest beyond it, in units of a scale,
    with shape (B, n): all equalities, and of the rest as many as may be weighted."""
    margin = torch.minimum(g.values - g.lower, g.upper - g.values).detach() / scale
    margin = margin.nan_to_num(0.0, neginf=torch.finfo(margin.dtype).min)  # of a flat value
    fixed = g.lower == g.upper
    margin = margin.masked_fill(fixed, -math.inf)
    most = min(fixed.shape[1], MOST + int(fixed[0].sum()))
    return margin.topk(most, dim=1, largest=False).indices


def tails(S: Tensor, curved: Tensor) -> Tensor:
    """Returns the degrees of freedom of values, with shape (B), given their variance and the part
    of it that is curvature, with shape (B, m, m)."""
    share = torch.linalg.solve(S, curved).diagonal(dim1=1, dim2=2).mean(dim=1)
    return HEAVY / share.square()
