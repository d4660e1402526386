"""Models and sources as arrays and a plain description: files that can be loaded without running anything."""

import inspect
import math
import pkgutil
import reprlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces
from torch.overrides import TorchFunctionMode

from sb3_caps.files.archive import is_archive, read_archive, write_archive
from sb3_caps.files.descriptions import (
    as_plain,
    build_normalizer,
    build_space,
    build_use,
    describe_normalizer,
    describe_space,
    describe_use,
)
from sb3_caps.files.plain import Kind, check_no_marks
from sb3_caps.files.saved_models import ModelPath
from sb3_caps.files.schema import (
    ACTIVATIONS,
    EXTRACTORS,
    MODEL,
    MODEL_ARGUMENTS,
    POLICY,
    POLICY_ARGUMENTS,
    PROGRESS,
    SOURCE,
    WITH_SOURCES,
)
from sb3_caps.reuse.options import OptionSet
from sb3_caps.reuse.scale import ReturnScale
from sb3_caps.sources.act import ObservationNormalizer, PolicyAct, SourcePolicy
from sb3_caps.sources.load import as_source

Model = TypeVar("Model", bound=BaseAlgorithm)
POLICIES = {
    "dqn": "stable_baselines3.dqn.policies:DQNPolicy",
    "actor-critic": "stable_baselines3.common.policies:ActorCriticPolicy",
    "sac": "stable_baselines3.sac.policies:SACPolicy",
    "td3": "stable_baselines3.td3.policies:TD3Policy",
    "caps": "sb3_caps.caps.policies:CAPSPolicy",
    "continuous": "sb3_caps.continuous.policies:ContinuousCAPSPolicy",
}
PLAIN = "plain policies of DQN, PPO, A2C, SAC, TD3, DDPG and CAPS"
# Arguments that a model keeps under another name
KEPT_AS = {"stats_window_size": "_stats_window_size", "exploration_schedule": "given_exploration_schedule"}


def export_source(source: Any, path: str | Path) -> None:
    """
    Write a source policy as arrays and a plain description, which ``as_source`` reads without running anything.

    Plain policies of DQN, PPO, A2C, SAC, TD3, DDPG and CAPS can be exported: those of standard layers, for vectors,
    images or numbers.

    :param source: anything that ``as_source`` takes
    :param path: the file; ``.npz`` is added to a path without a suffix
    """
    arrays: dict[str, np.ndarray] = {}
    _write(path, "source", SOURCE, _describe_source(as_source(source), arrays, "source"), arrays)


def export_model(model: BaseAlgorithm, path: str | Path) -> None:
    """
    Write a model of CAPS as arrays and a plain description, which ``load`` and ``as_source`` read without running
    anything. It acts as the model does, knows what sources and learner are worth, and learns on with a fresh optimizer
    and an empty replay buffer.

    :param model: the model
    :param path: the file; ``.npz`` is added to a path without a suffix
    """
    name = type(model).__name__
    if name not in MODEL_ARGUMENTS:
        only = " and ".join(MODEL_ARGUMENTS)
        raise ValueError(
            f"{name} cannot be exported as a model, only {only}: see export_source for what it has learned."
        )
    state: dict[str, Any] = vars(model)
    arrays: dict[str, np.ndarray] = {}
    arguments, left_out = _describe_arguments(model, MODEL_ARGUMENTS[name])
    content: dict[str, Any] = {
        "algorithm": name,
        "policy": _describe_policy(model.policy, arrays, "model", name),
        "arguments": arguments,
        "progress": {key: as_plain(state[key]) for key in PROGRESS[name]},
        "selector": {key: _states(state["selector"], key) for key in ("evidence", "rewards")},
        "use": describe_use(state["_use"]),
    }
    if name == "CAPS":
        content["return_scale"] = float(state["_scale"].value)
    else:
        content["selector"]["lengths"] = _states(state["selector"], "lengths")
        learned = state["log_ent_coef"]
        content["entropy_coefficient"] = (state["ent_coef_tensor"] if learned is None else learned.exp()).item()
    _write(path, "model", MODEL, content, arrays)
    if left_out:
        warnings.warn(f"Not exported, pass it to load: {'; '.join(left_out)}.", stacklevel=3)


def is_export(path: ModelPath) -> bool:
    """
    :param path: a file
    :return: whether ``export_source`` or ``export_model`` wrote it
    """
    return is_archive(path)


def source_from_export(path: Path) -> SourcePolicy:
    """
    :param path: what ``export_source`` or ``export_model`` wrote
    :return: the source policy
    """
    try:
        part, content, arrays = _read(path)
        with _NoLargerThan(arrays):
            if part == "source":
                return _build_source(content, arrays, part)
            policy = _build_policy(content["policy"], arrays, part)
            return _source_of(policy, path.stem, policy.options.normalizer)
    except Exception as error:  # what was damaged, or changed by hand, may raise anything
        raise _damaged(path, error) from error


def model_from_export(
    path: ModelPath,
    algorithm: type[Model],
    env: GymEnv | None,
    device: th.device | str,
    given: Mapping[str, Any],
) -> Model:
    """
    Build a model from plain values and arrays. Nothing of the file is run, imported or handed on to be read as code.

    :param path: what ``export_model`` wrote
    :param algorithm: the class of the model
    :param env: the environment to learn in, None to act alone
    :param device: where to compute
    :param given: arguments in place of those of the file, and of those that are code; ``policy_kwargs`` are merged
    :return: the model
    """
    try:
        part, content, arrays = _read(path)
        spaces = _build_spaces(content["policy"], arrays, part)
    except Exception as error:  # as above
        raise _damaged(path, error) from error
    found = content["algorithm"] if part == "model" else "source policy"
    if found not in [base.__name__ for base in algorithm.__mro__]:
        raise ValueError(f"{path} is not a {algorithm.__name__} model, this is a {found}: pass it in source_policies.")
    described = content["policy"]
    own = {
        key: value for key, value in described["arguments"].items() if key in WITH_SOURCES.get(described["kind"], {})
    }
    policy_kwargs = _layer_arguments(described) | own | (given.get("policy_kwargs") or {})
    arguments = {**content["arguments"], **given, "policy_kwargs": policy_kwargs}
    create: Callable[..., Any] = algorithm
    model = create(
        pkgutil.resolve_name(POLICIES[described["kind"]]), env, device=device, **arguments, _init_setup_model=False
    )
    if model.env is not None:
        check_for_correct_spaces(model.env, *spaces)
    model.observation_space, model.action_space = spaces
    try:
        with _NoLargerThan(arrays):
            _fill(model, content, arrays)
    except Exception as error:  # as above
        values = ", ".join(f"{key} {reprlib.repr(value)}" for key, value in given.items())
        raise _damaged(path, error, f", or does not fit {values}" * bool(given)) from error
    return model


def _write(path: str | Path, part: str, kind: Kind, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    try:
        check_no_marks(content, part)
        kind.read(content, part)
    except ValueError as error:
        raise ValueError(f"This cannot be exported: save it ({error}).") from error
    write_archive(path, {part: content}, arrays)


def _read(path: ModelPath) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """
    :param path: what ``_write`` wrote
    :return: whether it is a source or a model, its description and its arrays
    """
    content, arrays = read_archive(path)
    for part, kind in (("source", SOURCE), ("model", MODEL)):
        if content.keys() == {part}:
            return part, kind.read(content[part], part), arrays
    raise ValueError(f"a description holds a source or a model, not {', '.join(content) or 'nothing'}")


def _damaged(path: ModelPath, error: Exception, or_else: str = "") -> ValueError:
    return ValueError(f"{path} is damaged, or no export{or_else} ({type(error).__name__}: {error}).")


class _NoLargerThan(TorchFunctionMode):
    """
    All layers together have no more parameters than the arrays of a file have numbers, whatever its description says.

    :param arrays: the arrays
    """

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.left = sum(array.size for array in arrays.values())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is th.empty:
            size = math.prod(args[0] if isinstance(args[0], (tuple, list)) else args)
            if size > self.left:
                raise ValueError(f"a layer has {size} parameters, and there are {self.left} numbers left for it")
            self.left -= size
        return func(*args, **(kwargs or {}))


def _describe_arguments(model: BaseAlgorithm, kinds: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """
    :param model: a model
    :param kinds: of its arguments, by name
    :return: the arguments of its constructor in plain values, and why others are left out
    """
    arguments, left_out = {}, []
    for name, kind in kinds.items():
        value = as_plain(vars(model)[KEPT_AS.get(name, name)])
        try:
            kind.read(value, name)
            check_no_marks(value, name)
            arguments[name] = value
        except ValueError as error:
            left_out.append(str(error))
    optimizers = sorted(model.policy_kwargs.keys() & {"optimizer_class", "optimizer_kwargs"})
    code = [f"policy_kwargs[{name!r}]" for name in optimizers]
    parameters = inspect.signature(type(model)).parameters
    own = [name for name in ("selector_class", "loss_fn") if name in parameters]
    code += [name for name in own if vars(model)[name] is not parameters[name].default]
    code += ["action_noise"] * (vars(model).get("action_noise") is not None)
    return arguments, [*left_out, *(f"{name} is code" for name in code)]


def _states(selector: Any, name: str) -> dict[str, Any]:
    """:return: what a selector knows of each behaviour; nothing where it chooses without"""
    return {behaviour: evidence.state() for behaviour, evidence in getattr(selector, name, {}).items()}


def _fill(model: Any, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """
    :param model: with its arguments
    :param content: its description
    :param arrays: its arrays
    """
    from sb3_caps.caps.gate import BUILT_IN  # models import what exports them

    described = content["policy"]
    model.n_envs = 1 if model.env is None else model.n_envs
    model.options, gate = _build_options(described, arrays, "model", model.action_space)
    model.source_names = model.options.source_names
    vars(model).update(content["progress"])
    vars(model)["_use"] = build_use(content["use"], len(model.options))
    if "return_scale" in content:
        vars(model)["_scale"] = scale = ReturnScale(model.gamma, model.n_envs)
        scale.value, scale.in_use = content["return_scale"], content["arguments"].get("normalize_returns", True)
    model._setup_model()
    if vars(model).get("log_ent_coef") is not None:
        model.log_ent_coef.data.fill_(math.log(max(content["entropy_coefficient"], 1e-30)))
    model.policy.load_state_dict(_state(model.policy, arrays, "model"))
    # With other sources, or without `safe`, a model acts by what it can; else as it did
    known_sources = {*model.options.source_names}
    if hasattr(model.selector, "restore"):
        names = known_sources | {behaviour.name for behaviour in BUILT_IN}
        for part in content["selector"].values():
            for gone in part.keys() - names:
                del part[gone]
        model.selector.restore(**content["selector"])
        # What learns is judged by a share of the steps so far
        model.selector.steps = model.num_timesteps
    acts_as_before = not gate.controller.is_source or gate.controller.name in known_sources
    if acts_as_before and model.safe == content["arguments"]["safe"]:
        model.gate.controller, model.gate.disabled = gate.controller, gate.disabled & known_sources


def _describe_source(source: SourcePolicy, arrays: dict[str, np.ndarray], prefix: str) -> dict[str, Any]:
    if source.policy is None or source.observation_map is not None or source.action_map is not None:
        what = "is a function" if source.policy is None else "has an observation_map or an action_map"
        raise ValueError(f"Source policy '{source.name}' {what}, which is code, and cannot be exported: save it.")
    return {
        "name": source.name,
        "deterministic": source.deterministic,
        "policy": _describe_policy(source.policy, arrays, prefix, source.name),
        "normalizer": describe_normalizer(getattr(source.act, "normalizer", None), arrays, prefix, source.name),
        **({} if source.ent_coef is None else {"ent_coef": source.ent_coef}),
    }


def _build_source(description: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str) -> SourcePolicy:
    policy = _build_policy(description["policy"], arrays, prefix)
    normalizer = build_normalizer(description["normalizer"], arrays, prefix, policy.observation_space)
    source = _source_of(policy, description["name"], normalizer, description["deterministic"])
    source.ent_coef = description.get("ent_coef")
    return source


def _source_of(
    policy: Any, name: str, normalizer: ObservationNormalizer | None, deterministic: bool = True
) -> SourcePolicy:
    act = PolicyAct(policy)
    act.normalizer = normalizer
    return SourcePolicy(
        act,
        name,
        observation_space=policy.observation_space,
        action_space=policy.action_space,
        deterministic=deterministic,
    )


def _describe_policy(given: BasePolicy, arrays: dict[str, np.ndarray], prefix: str, name: str) -> dict[str, Any]:
    """
    :param given: a policy
    :param arrays: where its parameters go
    :param prefix: what their names begin with
    :param name: the name of the source or model, for messages
    :return: all else that tells it apart from others
    """
    policy: Any = given
    kind = next((kind for kind, base in POLICIES.items() if _is_of(policy, base)), None)
    refused = None
    if kind is None:
        refused = f"a {type(policy).__name__}"
    elif policy.features_extractor_class not in EXTRACTORS.values():
        refused = f"a policy with a {policy.features_extractor_class.__name__}"
    elif policy.activation_fn not in ACTIVATIONS.values():
        refused = f"a policy with {getattr(policy.activation_fn, '__name__', policy.activation_fn)}"
    elif policy._get_constructor_parameters().get("use_sde", False):
        refused = "a policy with use_sde"
    if kind is None or refused is not None:
        raise ValueError(f"'{name}' is {refused} and cannot be exported, only {PLAIN}: save it.")
    # Not all that a policy of SB3 takes is among these
    parameters = {**vars(policy), **policy._get_constructor_parameters()}
    description: dict[str, Any] = {
        "kind": kind,
        "observation_space": describe_space(policy.observation_space, arrays, f"{prefix}/observations", name),
        "action_space": describe_space(policy.action_space, arrays, f"{prefix}/actions", name),
        "activation_fn": policy.activation_fn.__name__,
        "features_extractor": policy.features_extractor_class.__name__,
        "features_extractor_kwargs": as_plain(policy.features_extractor_kwargs),
        "arguments": {key: as_plain(parameters[key]) for key in POLICY_ARGUMENTS[kind]},
    }
    if kind in WITH_SOURCES:
        options: OptionSet = policy.options
        controller = policy.gate.controller
        description["options"] = {
            "observation_space": describe_space(options.observation_space, arrays, f"{prefix}/emitted", name),
            "normalizer": describe_normalizer(options.normalizer, arrays, f"{prefix}/emitted", name),
            "sources": [_describe_source(source, arrays, f"{prefix}/{i}") for i, source in enumerate(options.sources)],
        }
        description["gate"] = {
            "controller": {"name": controller.name, "is_source": controller.is_source},
            "disabled": sorted(policy.gate.disabled),
        }
    arrays |= {f"{prefix}/{key}": value.detach().cpu().numpy() for key, value in policy.state_dict().items()}
    # Whatever else it is made of would be lost in silence
    try:
        same = _layers(_build_policy(POLICY.read(description, name), arrays, prefix)) == _layers(policy)
    except (KeyError, RuntimeError):
        same = False
    except ValueError as error:
        raise ValueError(f"'{name}' cannot be exported: save it ({error}).") from error
    if not same:
        raise ValueError(f"The layers of '{name}' are not those that its arguments make: it cannot be exported.")
    return description


def _layers(policy: BasePolicy) -> str:
    # Without the name of the class: policies for images are those for vectors with another extractor
    return str(policy).partition("(")[2]


def _is_of(policy: BasePolicy, base: str) -> bool:
    """Subclasses elsewhere may do anything, so only the classes of that module."""
    module, _, _ = base.partition(":")
    return type(policy).__module__ == module and isinstance(policy, pkgutil.resolve_name(base))


def _layer_arguments(description: dict[str, Any]) -> dict[str, Any]:
    """:return: the arguments of a policy that say what its layers are"""
    return {
        "net_arch": description["arguments"]["net_arch"],
        "normalize_images": description["arguments"]["normalize_images"],
        "activation_fn": ACTIVATIONS[description["activation_fn"]],
        "features_extractor_class": EXTRACTORS[description["features_extractor"]],
        "features_extractor_kwargs": description["features_extractor_kwargs"],
    }


def _build_spaces(description: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str) -> tuple[Any, Any]:
    """:return: the spaces of observations and actions"""
    return (
        build_space(description["observation_space"], arrays, f"{prefix}/observations"),
        build_space(description["action_space"], arrays, f"{prefix}/actions"),
    )


def _build_options(
    description: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str, action_space: Any
) -> tuple[OptionSet, Any]:
    """:return: the options of a policy of CAPS, and which of them it acts by"""
    from sb3_caps.caps.gate import Gate  # models import what exports them
    from sb3_caps.continuous.options import BoxOptionSet

    given = description["options"]
    sources = [_build_source(source, arrays, f"{prefix}/{i}") for i, source in enumerate(given["sources"])]
    emitted = build_space(given["observation_space"], arrays, f"{prefix}/emitted")
    options_class: type[OptionSet] = BoxOptionSet if isinstance(action_space, spaces.Box) else OptionSet
    options = options_class(sources, emitted, action_space)
    options.normalizer = build_normalizer(given["normalizer"], arrays, f"{prefix}/emitted", emitted)
    gate = Gate(description["gate"]["controller"], set(description["gate"]["disabled"]))
    if gate.controller.is_source and gate.controller.name not in options.source_names:
        raise ValueError(
            f"{prefix}/policy/gate/controller must be one of {options.source_names}, not {gate.controller.name}"
        )
    return options, gate


def _build_policy(description: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str) -> Any:
    """
    :param description: what ``_describe_policy`` returned
    :param arrays: the parameters
    :param prefix: what their names begin with
    :return: the policy
    """
    kind = description["kind"]
    observation_space, action_space = _build_spaces(description, arrays, prefix)
    arguments = description["arguments"] | _layer_arguments(description)
    if kind in WITH_SOURCES:
        arguments["options"], arguments["gate"] = _build_options(description, arrays, prefix, action_space)
    policy = pkgutil.resolve_name(POLICIES[kind])(observation_space, action_space, lambda _: 1e-4, **arguments)
    found = _state(policy, arrays, prefix)
    if len(found) < len(policy.state_dict()):
        raise KeyError(f"parameters of {prefix}")
    policy.load_state_dict(found)
    return policy


def _state(policy: BasePolicy, arrays: dict[str, np.ndarray], prefix: str) -> dict[str, th.Tensor]:
    """:return: those parameters of a policy that are there"""
    names = {key: f"{prefix}/{key}" for key in policy.state_dict()}
    return {key: th.as_tensor(arrays[name]) for key, name in names.items() if name in arrays}
