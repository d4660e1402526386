"""What a description of a source or a model may hold: every field and its kind. All else is refused."""

import math
import pkgutil
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule

from sb3_caps.files.plain import (
    BOOLEAN,
    MOST,
    NAME,
    NOTHING,
    Kind,
    choice,
    either,
    group,
    integer,
    number,
    optional,
    record,
    refused,
    sequence,
    table,
    variant,
)
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.reuse.evidence import Evidence
from sb3_caps.reuse.schedules import PiecewiseLinear
from sb3_caps.sources.evaluate import ELEMENTWISE

EXTRACTORS = {extractor.__name__: extractor for extractor in (FlattenExtractor, NatureCNN)}
ACTIVATIONS = {activation.__name__: activation for activation in ELEMENTWISE}
# Memory is taken for each row of a replay buffer before anything is stored in it
LARGEST_BUFFER = 10**7
MOST_LAYERS = 32
# Squares of larger ones are no numbers any more
LARGEST_RETURN = 1e100

COUNT, SHARE = integer(), number(0, 1)
# SB3 reads the number at the end
ENT_COEF = Kind("auto, or auto_ and a number", lambda found, where: _read_ent_coef(found, where))
SCHEDULE = variant(
    "schedule",
    {
        "PiecewiseLinear": record(
            {"points": sequence(group(number(), number())), "total_timesteps": optional(COUNT)}, build=PiecewiseLinear
        ),
        "LinearSchedule": record({"start": number(), "end": number(), "end_fraction": number(0)}, build=LinearSchedule),
        "ConstantSchedule": record({"val": number()}, build=ConstantSchedule),
    },
)
# A box has its bounds among the arrays
SPACE = record({}, {"n": integer(1)})
# Its layers, the outermost first. Their moments are among the arrays
NORMALIZER = sequence(record({"epsilon": number(0), "clip_obs": number(0)}))
RETURN = number(-LARGEST_RETURN, LARGEST_RETURN)
EVIDENCE = record(
    {
        "n": number(0, MOST),
        "mean": RETURN,
        "squares": number(0, LARGEST_RETURN**2),
        "latest": optional(integer(1)),
        "recent": optional(sequence(RETURN)),
    },
    build=lambda **state: Evidence.from_state(state),
)
SELECTOR = record({"evidence": table(EVIDENCE), "rewards": table(EVIDENCE)}, {"lengths": table(EVIDENCE)})
GATE = record(
    {
        "controller": record({"name": NAME, "is_source": BOOLEAN}, build=Behaviour),
        "disabled": sequence(NAME),
    }
)
USE = record({"steps": sequence(COUNT), "choices": sequence(COUNT), "agreeing": COUNT})

LAYERS = sequence(integer(1), MOST_LAYERS)
NET_ARCH = either(LAYERS, record({}, {"pi": LAYERS, "vf": LAYERS, "qf": LAYERS}))
ACTOR_ARCH = record({"pi": LAYERS, "vf": LAYERS, "activation_fn": choice(*ACTIVATIONS)})
NETWORK = {"net_arch": NET_ARCH, "normalize_images": BOOLEAN}
# What a user of CAPS passes as policy_kwargs, and what its algorithm passes beside that
CAPS_NETWORK = {
    **NETWORK,
    "execution": choice("interrupting", "call-and-return"),
    "shared_values": BOOLEAN,
    "averaging": optional(SHARE),
}
CAPS_LEARNING = {
    "termination": optional(SHARE),
    "initial_termination": either(SHARE, group(SHARE, SHARE)),
    "termination_learning_rate": optional(number(0)),
    "margin": number(0),
    "actor_learning_rate": number(0),
    "actor_arch": ACTOR_ARCH,
}
TWIN_NETWORK = {**NETWORK, "n_critics": integer(1, MOST_LAYERS), "share_features_extractor": BOOLEAN}
CONTINUOUS_NETWORK = {**TWIN_NETWORK, "execution": CAPS_NETWORK["execution"]}
# What a policy takes beside its activation and its extractor, by kind
POLICY_ARGUMENTS = {
    "dqn": NETWORK,
    "actor-critic": {**NETWORK, "share_features_extractor": BOOLEAN},
    "sac": TWIN_NETWORK,
    "td3": TWIN_NETWORK,
    "caps": {**CAPS_NETWORK, **CAPS_LEARNING},
    "continuous": CONTINUOUS_NETWORK,
}
# Those that have sources of their own: what a user passes as policy_kwargs
WITH_SOURCES = {"caps": CAPS_NETWORK, "continuous": CONTINUOUS_NETWORK}


def _read_ent_coef(found: Any, where: str) -> str:
    start, _, value = found.partition("_") if isinstance(found, str) else ("", "", "")
    try:
        if start == "auto" and (found == start or math.isfinite(float(value))):
            return str(found)
    except ValueError:
        pass
    raise refused(where, ENT_COEF.accepts, found)


def _read_policy(found: Any, where: str) -> Any:
    return _POLICY.read(found, where)


POLICY = Kind("a policy", _read_policy)
SOURCE = record(
    {"name": NAME, "deterministic": BOOLEAN, "policy": POLICY, "normalizer": NORMALIZER}, {"ent_coef": number(0)}
)
_OF_EACH_POLICY = {
    "observation_space": SPACE,
    "action_space": SPACE,
    "activation_fn": choice(*ACTIVATIONS),
    "features_extractor": choice(*EXTRACTORS),
    "features_extractor_kwargs": record({}, {"features_dim": integer(1), "normalized_image": BOOLEAN}),
}
_OPTIONS = record({"observation_space": SPACE, "normalizer": NORMALIZER, "sources": sequence(SOURCE)})
_POLICY = variant(
    "kind",
    {
        kind: record(
            _OF_EACH_POLICY
            | {"arguments": record(arguments)}
            | ({"options": _OPTIONS, "gate": GATE} if kind in WITH_SOURCES else {}),
            build=lambda kind=kind, **fields: {"kind": kind, **fields},
        )
        for kind, arguments in POLICY_ARGUMENTS.items()
    },
)


def kind_of(annotation: Any) -> Kind:
    """
    :param annotation: the type of a number, a flag, a word of some, a pair of numbers, a schedule, or of one of these
    :return: its kind; a type that is none of these has none
    """
    simple = {
        bool: BOOLEAN,
        int: integer(),
        float: number(),
        NoneType: NOTHING,
        tuple[float, float]: group(number(), number()),
    }
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return either(*map(kind_of, get_args(annotation)))
    if origin is Callable:
        return SCHEDULE
    return choice(*get_args(annotation)) if origin is Literal else simple[annotation]


def group_of_arguments(name: str) -> Kind:
    """
    :param name: the dataclass of some arguments, as ``module:class``
    :return: some of them, by name
    """

    @cache
    def made() -> Kind:
        # Their modules import what exports models
        fields = get_type_hints(pkgutil.resolve_name(name))
        return record({}, {field: kind_of(annotation) for field, annotation in fields.items()})

    return Kind(f"an object with arguments of {name}", lambda found, where: made().read(found, where))


# Arguments of CAPS. Those that are no part of a model are not exported: its networks and sources are described on their
# own, and where the user's files and devices are is the user's
ARGUMENTS: dict[str, Kind] = {
    "learning_rate": either(number(0), SCHEDULE),
    "buffer_size": integer(1, LARGEST_BUFFER),
    "learning_starts": COUNT,
    "batch_size": integer(1),
    "tau": SHARE,
    "gamma": SHARE,
    "train_freq": group(integer(1), choice("step", "episode")),
    "gradient_steps": integer(-1),
    "replay_buffer_kwargs": record(
        {},
        {
            "handle_timeout_termination": BOOLEAN,
            "prioritized_share": SHARE,
            "frame_stack": optional(integer(1)),
            # No extra, which would be imported: the user's choice and not a file's
            "compression": optional(choice("zlib")),
        },
    ),
    "optimize_memory_usage": BOOLEAN,
    "n_steps": integer(1),
    "target_update_interval": integer(1),
    "exploration_fraction": number(),
    "exploration_initial_eps": number(),
    "exploration_final_eps": number(),
    "max_grad_norm": number(0),
    "stats_window_size": integer(1),
    "verbose": integer(0, 2),
    "seed": optional(integer(0, 2**32 - 1)),
    "termination": optional(SHARE),
    "termination_kwargs": group_of_arguments("sb3_caps.caps.arguments:Termination"),
    "sequence_length": integer(1),
    "exploration_schedule": optional(SCHEDULE),
    "exploration": choice("steps", "terminations"),
    "actor_kwargs": group_of_arguments("sb3_caps.caps.arguments:Actor"),
    "selection_kwargs": group_of_arguments("sb3_caps.caps.selection:Selection"),
    "normalize_returns": BOOLEAN,
    "safe": BOOLEAN,
}
_SHARED = (
    "learning_rate buffer_size learning_starts batch_size tau gamma train_freq gradient_steps optimize_memory_usage "
    "n_steps target_update_interval stats_window_size verbose seed safe"
)
CONTINUOUS_ARGUMENTS: dict[str, Kind] = {
    **{name: ARGUMENTS[name] for name in _SHARED.split()},
    "replay_buffer_kwargs": record({}, {"handle_timeout_termination": BOOLEAN}),
    "ent_coef": either(number(0), ENT_COEF),
    "target_entropy": either(number(), choice("auto")),
    "use_sde": BOOLEAN,
    "sde_sample_freq": integer(-1),
    "use_sde_at_warmup": BOOLEAN,
    "pull": number(0),
    "selection_kwargs": group_of_arguments("sb3_caps.continuous.selection:Selection"),
}
NOT_EXPORTED = {"policy", "env", "device", "policy_kwargs", "replay_buffer_class", "source_policies", "tensorboard_log"}
NOT_EXPORTED |= {"selector_class", "loss_fn"}
# How far a model has come, by the names of its attributes
_PROGRESS = {
    "num_timesteps": COUNT,
    "_n_updates": COUNT,
    "_episode_num": COUNT,
    "_current_progress_remaining": number(),
}
PROGRESS = {
    "CAPS": {
        **_PROGRESS,
        "_n_calls": COUNT,
        "exploration_rate": number(),
        "_actor_steps": COUNT,
        "_actor_started": BOOLEAN,
        "_actor_arch": optional(ACTOR_ARCH),
    },
    "ContinuousCAPS": {**_PROGRESS, "_owed_steps": COUNT, "_n_batches": COUNT, "_is_cloned": BOOLEAN},
}


def _model(name: str, arguments: dict[str, Kind], others: dict[str, Kind]) -> Kind:
    parts = {
        "policy": POLICY,
        "arguments": record({"safe": BOOLEAN}, arguments),
        "progress": record(PROGRESS[name]),
        "selector": SELECTOR,
        "use": USE,
    }
    return record(parts | others, build=lambda **fields: {"algorithm": name, **fields})


MODEL_ARGUMENTS = {"CAPS": ARGUMENTS, "ContinuousCAPS": CONTINUOUS_ARGUMENTS}
MODEL = variant(
    "algorithm",
    {
        "CAPS": _model("CAPS", ARGUMENTS, {"return_scale": number(0)}),
        "ContinuousCAPS": _model("ContinuousCAPS", CONTINUOUS_ARGUMENTS, {"entropy_coefficient": number(0)}),
    },
)
