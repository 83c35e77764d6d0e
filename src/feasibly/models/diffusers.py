"""Models of diffusers, with the scheduler that says what they predict."""

__all__ = ["diffusers", "is_diffusers"]

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..denoisers.adapter import Adapter
from ..denoisers.predictions import FORMULAS, karras
from ..errors import DenoiserError
from ..files import check_file
from ..schedules import EDM, VE, Schedule
from .tables import AlphaBar

PREDICTIONS = {"epsilon": "eps", "v_prediction": "v", "sample": "x0"}
NETWORKS = ("unet", "transformer")
FLOWS = {None: "velocity", "flow_prediction": "velocity", "epsilon": "eps", "sample": "x0"}
WIDEST = 2**16
"""A number that a configuration may have, however small the network: of steps, say."""

DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)
"""What a damaged folder makes of diffusers."""

DISTILLED = ("LCM", "TCD", "SCM", "CM", "FlowMatchLCM", "FlowMap")


def is_diffusers(net: Any) -> bool:
    """Whether this is a folder, or an object of diffusers."""
    return isinstance(net, (str, Path)) or any(
        cls.__module__.split(".")[0] == "diffusers" for cls in type(net).__mro__
    )


def diffusers(net: Any, schedule: Any = None) -> Adapter:
    r"""Wraps a model of diffusers.

    Nothing is clipped, unlike in a scheduler's `step`: a clipped estimate has no gradient.

    References:
        | https://github.com/huggingface/diffusers

    Arguments:
        net: A pipeline, a model, or a folder that `save_pretrained` of either has written.
        schedule: The scheduler, or the folder of its configuration; None for a pipeline's own.

    Raises:
        DenoiserError: If diffusers is missing, there is no scheduler, or it is of a kind without a
            Gaussian forward process.
    """
    library = _library()
    if isinstance(net, (str, Path)):
        net, found = _load(library, Path(net))
        schedule = schedule or found
    elif not isinstance(net, nn.Module) and hasattr(net, "scheduler"):
        schedule = schedule or net.scheduler
        net = next((n for n in (getattr(net, k, None) for k in NETWORKS) if n is not None), None)
    if isinstance(schedule, (str, Path)):
        schedule = _object(library, Path(schedule), "scheduler_config.json")
    if not isinstance(net, nn.Module):
        raise DenoiserError(
            f"Expected a model of diffusers, or a pipeline with one of {NETWORKS}; got "
            f"{type(net).__name__}."
        )
    if schedule is None:
        raise DenoiserError(
            "A model of diffusers does not say what it predicts, but its scheduler does. Pass it "
            "as schedule=..., an object such as DDPMScheduler(...) or the folder of its "
            "scheduler_config.json."
        )
    options = _read(schedule)
    return Adapter(
        net,
        **options,
        call=_call,
        learned_variance=_learns_variance(net),
        notes=(
            f"{type(schedule).__name__}, prediction_type {_setting(schedule, 'prediction_type')}",
            *(["the channels of a learned variance are dropped"] * _learns_variance(net)),
        ),
    )


def _library() -> ModuleType:
    try:
        import diffusers
    except ImportError as error:
        raise DenoiserError(
            f"kind='diffusers' needs that library, which cannot be imported ({error}). Install "
            "it by `pip install diffusers`; if it is installed, a torchvision of another "
            "torch is the usual cause: `pip uninstall torchvision`."
        ) from error
    return diffusers


def _call(net: Any, x: Tensor, time: Tensor, conditions: dict[str, Any]) -> Any:
    return net(x, timestep=time, **conditions)


def _object(library: ModuleType, folder: Path, config: str) -> Any:
    """The model or scheduler in a folder, of the class that its configuration names.

    A folder is somebody's file: it may name neither another class nor hold pickles, either of
    which could run code of its own."""
    model = config == "config.json"
    base = library.ModelMixin if model else library.SchedulerMixin
    # what diffusers falls back to without accelerate, of which it would warn
    options = {"use_safetensors": True, "low_cpu_mem_usage": False, "output_loading_info": True}
    try:
        described = json.loads(check_file(folder / config).read_text())
        name = described["_class_name"]
        cls = getattr(library, str(name), None)
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise DenoiserError(
                f"{folder / config} names the class {name!r}, which is no "
                f"{'model' if model else 'scheduler'} of this diffusers ({library.__version__}); "
                f"only subclasses of its {base.__name__} are loaded from a folder."
            )
        if not model:
            return cls.from_pretrained(str(folder), local_files_only=True)
        _check_size(cls, described, folder)
        found, info = cls.from_pretrained(str(folder), local_files_only=True, **options)
        _check_keys(folder, info)
        return found
    except DenoiserError:
        raise  # it says what is wrong
    except (*DAMAGED, SafetensorError) as error:
        advice = "give the folder that save_pretrained() of a pipeline, model or scheduler wrote."
        if (folder / config).is_file() and model and not any(folder.glob("*.safetensors*")):
            advice = (
                "it has no weights as safetensors. A pickle (.bin) could run code, and is not "
                "loaded. If you trust one, load it by the model's own from_pretrained(), and "
                "write it anew by save_pretrained(..., safe_serialization=True)."
            )
        raise DenoiserError(
            f"{folder} cannot be read as a folder of diffusers ({type(error).__name__}: {error}); "
            f"{advice}"
        ) from error


def _check_size(cls: Any, described: Any, folder: Path) -> None:
    """Refuses a configuration of more parameters than there are weights, before they take
    memory."""
    numbers = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(check_file(path), framework="pt") as file:
            shapes = (file.get_slice(key).get_shape() for key in file.keys())  # noqa: SIM118
            numbers += sum(map(math.prod, shapes))
    if not numbers:
        return  # it is said why when they are loaded
    # a single number could already be that of layers, which take time where they take no memory
    largest = max(_numbers(described), default=0)
    count = largest if largest > max(numbers, WIDEST) else 0
    if not count:
        with torch.device("meta"):  # where parameters take no memory
            count = sum(p.numel() for p in cls.from_config(described).parameters())
    if count > numbers:
        raise DenoiserError(
            f"{folder} describes a network of {count:,} parameters or more, and its weights are "
            f"{numbers:,} numbers: they belong to another network, or its files are damaged."
        )


def _numbers(value: Any) -> Iterator[int]:
    """Yields the whole numbers of a configuration."""
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from _numbers(one)
        elif isinstance(one, int):
            yield one


def _check_keys(folder: Path, info: dict[str, list[Any]]) -> None:
    """Refuses weights that are not those of the network: some of its would be random."""
    wrong = {kind.removesuffix("_keys"): keys for kind, keys in info.items() if keys}
    if wrong:
        named = "; ".join(
            f"{len(keys)} {kind} ({', '.join(sorted(map(str, keys))[:3])})"
            for kind, keys in wrong.items()
        )
        raise DenoiserError(
            f"The weights in {folder} are not those of the network that its config.json "
            f"describes: {named}. Give the two as save_pretrained() wrote them."
        )


def _load(library: ModuleType, folder: Path) -> tuple[Any, Any]:
    """The network in a folder, and its scheduler if there is one."""
    network = next((folder / k for k in NETWORKS if (folder / k).is_dir()), folder)
    scheduler = folder / "scheduler"
    if not (scheduler / "scheduler_config.json").is_file():
        scheduler = folder
    found = (scheduler / "scheduler_config.json").is_file()
    return (
        _object(library, network, "config.json"),
        _object(library, scheduler, "scheduler_config.json") if found else None,
    )


def _setting(scheduler: Any, name: str) -> Any:
    return getattr(getattr(scheduler, "config", scheduler), name, None)


def _learns_variance(net: Any) -> bool:
    channels = [_setting(net, name) for name in ("in_channels", "out_channels")]
    return None not in channels and channels[1] == 2 * channels[0]


def _read(scheduler: Any) -> dict[str, Any]:
    """What a scheduler says of its model: schedule, prediction, time and scale."""
    name = type(scheduler).__name__
    if name.startswith(DISTILLED):
        raise DenoiserError(
            f"{name} belongs to a distilled model, whose output is not a posterior mean; use the "
            "model from which it was distilled."
        )
    if name.startswith("EDM"):
        return _edm(scheduler)
    if name.startswith("FlowMatch") or _setting(scheduler, "use_flow_sigmas"):
        return _flow(scheduler)
    predicts = _setting(scheduler, "prediction_type")
    table = getattr(scheduler, "alphas_cumprod", None)
    if table is None or predicts not in PREDICTIONS:
        raise DenoiserError(
            f"{name} with prediction_type {predicts!r} is not supported: schedulers with a table "
            f"alphas_cumprod and one of {[*PREDICTIONS]} are, and those whose names begin with "
            "EDM or FlowMatch. If you know what the model predicts, wrap it by kind='eps' or "
            "another, with a schedule."
        )
    return _table(scheduler, AlphaBar(table), PREDICTIONS[predicts])


def _table(scheduler: Any, schedule: AlphaBar, prediction: str) -> dict[str, Any]:
    r"""A table of :math:`\bar\alpha`. Schedulers that keep states of unit signal (Euler and its
    like) divide them by :math:`\sqrt{1 + \sigma^2}` at the model's entrance, which gives the
    states of this schedule."""
    clock = {"clock": "the step u = (N - 1) t"}
    if _setting(scheduler, "timestep_type") == "continuous" and prediction == "v":
        clock = {"time": lambda t: quarter_log(schedule, t), "clock": "log(sigma / alpha) / 4"}
    return {"schedule": schedule, "prediction": prediction, **clock}


def quarter_log(schedule: Schedule, t: Tensor) -> Tensor:
    r"""Returns :math:`\frac{1}{4} \log (\sigma_t / \alpha_t)`."""
    alpha, sigma = schedule(t)
    return (sigma / alpha).log() / 4


def _edm(scheduler: Any) -> dict[str, Any]:
    low, high, rho, data = (
        _setting(scheduler, name) for name in ("sigma_min", "sigma_max", "rho", "sigma_data")
    )
    predicts = _setting(scheduler, "prediction_type")
    if predicts not in ("epsilon", "v_prediction"):
        raise DenoiserError(
            f"{type(scheduler).__name__} has prediction_type {predicts!r}; it knows 'epsilon' and "
            "'v_prediction'."
        )
    by_karras = _setting(scheduler, "sigma_schedule") == "karras"
    schedule = EDM(low, high, rho) if by_karras else VE(low, high)
    return {
        "schedule": schedule,
        "prediction": karras(data, 1.0 if predicts == "epsilon" else -1.0),
        "predicts": FORMULAS["karras"],
        "time": lambda t: quarter_log(schedule, t),
        "clock": "log(sigma) / 4",
        "scale": lambda at: 1 / torch.sqrt(at.sigma**2 + data**2),
    }


class Shifted(Schedule):
    r"""Rectified flow, :math:`\alpha = 1 - s` and :math:`\sigma = s`, whose time :math:`s` is
    shifted toward noise,

    .. math:: s = \frac{k t'}{1 + (k - 1) t'}, \qquad t' = \tau + (1 - 2 \tau) t .

    References:
        | Scaling Rectified Flow Transformers (Esser et al., 2024), Section 5.3.2
        | https://arxiv.org/abs/2403.03206

    Arguments:
        shift: The shift :math:`k`.
        tau: The distance of :math:`t'` from the ends.
    """

    def __init__(self, shift: float = 1.0, tau: float = 1e-3) -> None:
        if not shift > 0:
            raise ValueError(f"Shifted needs a positive shift, got {shift}.")
        self.shift, self.tau = shift, tau

    def time(self, t: Tensor) -> Tensor:
        t = self.tau + (1 - 2 * self.tau) * t
        return self.shift * t / (1 + (self.shift - 1) * t)

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        s = self.time(t)
        return 1 - s, s


def _flow(scheduler: Any) -> dict[str, Any]:
    predicts = _setting(scheduler, "prediction_type")
    if predicts not in FLOWS or _setting(scheduler, "invert_sigmas"):
        raise DenoiserError(
            f"{type(scheduler).__name__} with prediction_type {predicts!r} and invert_sigmas "
            f"{_setting(scheduler, 'invert_sigmas')!r} is not supported: for a flow, schedulers "
            f"of {[*FLOWS]} with times from data to noise are. If you know what the model "
            "predicts, wrap it by kind='velocity' or another, with a schedule."
        )
    shift = _setting(scheduler, "flow_shift") or _setting(scheduler, "shift") or 1.0
    # a shift by the size of the image moves the steps only, like any other
    schedule = Shifted(1.0 if _setting(scheduler, "use_dynamic_shifting") else float(shift))
    steps = _setting(scheduler, "num_train_timesteps")
    return {
        "schedule": schedule,
        "prediction": FLOWS[predicts],
        "time": lambda t: steps * schedule.time(t),
        "clock": f"{steps} sigma",
    }
