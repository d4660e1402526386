"""Models and sources as arrays and a plain description: files that can be loaded without running anything."""

import io
import json
import pkgutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import open_path, save_to_zip_file
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from sb3_caps.files.descriptions import (
    build_normalizer,
    build_record,
    build_space,
    describe_normalizer,
    describe_record,
    describe_space,
    is_plain,
)
from sb3_caps.files.save_util import atomic_write
from sb3_caps.files.saved_models import ModelPath
from sb3_caps.reuse.checks import constructor_arguments
from sb3_caps.reuse.options import OptionSet
from sb3_caps.reuse.scale import ReturnScale
from sb3_caps.sources.act import ObservationNormalizer, PolicyAct, SourcePolicy
from sb3_caps.sources.evaluate import ELEMENTWISE
from sb3_caps.sources.load import as_source

FORMAT = "sb3_caps export 6"
POLICIES = {
    "dqn": "stable_baselines3.dqn.policies:DQNPolicy",
    "actor-critic": "stable_baselines3.common.policies:ActorCriticPolicy",
    "caps": "sb3_caps.caps.policies:CAPSPolicy",
}
EXTRACTORS = {extractor.__name__: extractor for extractor in (FlattenExtractor, NatureCNN)}
ACTIVATIONS = {activation.__name__: activation for activation in ELEMENTWISE}
# What a policy takes beside its activation and its extractor, by kind
PLAIN_ARGUMENTS = {
    "dqn": ("net_arch", "normalize_images"),
    "actor-critic": ("net_arch", "normalize_images", "share_features_extractor"),
    "caps": (
        "net_arch",
        "normalize_images",
        "termination",
        "initial_termination",
        "termination_learning_rate",
        "shared_values",
        "averaging",
    ),
}
EXTRACTOR_ARGUMENTS = ("features_dim", "normalized_image")
# Of an algorithm: code, what is described on its own, and where the user's files are
NOT_EXPORTED = {"policy", "env", "device", "policy_kwargs", "replay_buffer_class", "source_policies", "tensorboard_log"}
# What a model remembers of its episodes, beside its networks
RECORDS = {"_trials": "sb3_caps.caps.trials:Trials", "_use": "sb3_caps.caps.summary:UseOfOptions"}
COUNTS = ("num_timesteps", "_n_updates", "_n_calls", "_episode_num")
SHARES = ("exploration_rate", "_current_progress_remaining")


def export_source(source: Any, path: str | Path) -> None:
    """
    Write a source policy as arrays and a plain description, which ``as_source`` reads without running anything.

    Plain policies of DQN, PPO, A2C and CAPS can be exported: those of standard layers, for vectors, images or numbers.

    :param source: anything that ``as_source`` takes
    :param path: the file; ``.npz`` is added to a path without a suffix
    """
    arrays: dict[str, np.ndarray] = {}
    _write(path, {"source": _describe_source(as_source(source), arrays, "source")}, arrays)


def export_model(model: BaseAlgorithm, path: str | Path) -> None:
    """
    Write a CAPS model as arrays and a plain description, which ``CAPS.load`` and ``as_source`` read without running
    anything. It acts as the model does, knows what sources and learner are worth, and learns on with a fresh optimizer
    and an empty replay buffer.

    :param model: the model
    :param path: the file; ``.npz`` is added to a path without a suffix
    """
    name = type(model).__name__
    if name != "CAPS":
        raise ValueError(f"{name} cannot be exported as a model, only CAPS: see export_source for what it has learned.")
    arrays: dict[str, np.ndarray] = {}
    names = constructor_arguments(type(model)).keys() - NOT_EXPORTED
    arguments = {key: value for key, value in vars(model).items() if key in names}
    arguments["exploration_schedule"] = vars(model)["given_exploration_schedule"]
    train_freq: Any = arguments["train_freq"]
    arguments["train_freq"] = [train_freq.frequency, train_freq.unit.value]
    left_out = [key for key, value in arguments.items() if not is_plain(value)]
    left_out += ["policy_kwargs"] * bool(model.policy_kwargs.keys() & {"optimizer_class", "optimizer_kwargs"})
    if left_out:
        warnings.warn(f"{', '.join(sorted(left_out))} are code and not exported: pass them to load.", stacklevel=3)
    content = {
        "algorithm": name,
        "policy": _describe_policy(model.policy, arrays, "policy", name),
        "arguments": {key: value for key, value in arguments.items() if key not in left_out},
        "progress": {key: getattr(model, key) for key in (*COUNTS, *SHARES)},
        "records": {key: describe_record(vars(model)[key]) for key in RECORDS},
        "return_scale": 0.0 if vars(model)["_scale"] is None else vars(model)["_scale"].value,
    }
    _write(path, {"model": content}, arrays)


def is_export(path: ModelPath) -> bool:
    """
    :param path: a file
    :return: whether ``export_source`` or ``export_model`` wrote it
    """
    file = open_path(path, "r", verbose=0, suffix="zip")
    start = file.tell()
    try:
        with zipfile.ZipFile(file) as archive:
            return "description.npy" in archive.namelist()
    except Exception:  # there is nothing that a zip file with other bits in it may not raise
        return False
    finally:
        if isinstance(path, (str, Path)):
            file.close()
        else:
            file.seek(start)


def source_from_export(path: Path) -> SourcePolicy:
    """
    :param path: what ``export_source`` or ``export_model`` wrote
    :return: the source policy
    """
    content, arrays = _read(path)
    try:
        if "source" in content:
            return _build_source(content["source"], arrays, "source")
        policy = _build_policy(content["model"]["policy"], arrays, "policy")
        return _source_of(policy, path.stem, policy.options.normalizer)
    except Exception as error:  # a description that was changed by hand may raise anything
        raise _damaged(path, error) from error


def saved_from_export(path: ModelPath, algorithm: type[BaseAlgorithm], policy_kwargs: dict[str, Any]) -> io.BytesIO:
    """
    :param path: what ``export_model`` wrote
    :param algorithm: the class that is about to load it
    :param policy_kwargs: what its policy gets in place of what was exported, and of what is code and was not
    :return: the same model as SB3 saves it
    """
    content, arrays = _read(path)
    found = content["model"].get("algorithm") if "model" in content else "source policy"
    if found not in [base.__name__ for base in algorithm.__mro__]:
        raise ValueError(f"{path} is no {algorithm.__name__} model, this is a {found}: pass it in source_policies.")
    try:
        described = content["model"]["policy"]
        policy = _build_policy(described, arrays, "policy", policy_kwargs)
        arguments = content["model"]["arguments"]
        allowed = constructor_arguments(algorithm).keys() - NOT_EXPORTED
        data = {key: value for key, value in arguments.items() if key in allowed and is_plain(value)}
        progress = content["model"]["progress"]
        data |= {key: int(progress[key]) for key in COUNTS} | {key: float(progress[key]) for key in SHARES}
        data["_scale"] = ReturnScale(float(arguments["gamma"]), n_envs=1)
        data["_scale"].value = float(content["model"]["return_scale"])
        second = {"_trials": float(arguments["gamma"]), "_use": len(policy.options)}
        for key, record in content["model"]["records"].items():
            if record is not None:
                new = pkgutil.resolve_name(RECORDS[key])(policy.options.n_sources, second[key])
                data[key] = build_record(new, record)
        frequency, unit = data["train_freq"]
        data["train_freq"] = TrainFreq(int(frequency), TrainFrequencyUnit(unit))
        data["given_exploration_schedule"] = data.pop("exploration_schedule", None)
        data |= {
            "policy_class": type(policy),
            "policy_kwargs": _network_arguments(described)
            | {key: described["arguments"][key] for key in ("execution", "shared_values", "averaging")}
            | policy_kwargs,
            "observation_space": policy.observation_space,
            "action_space": policy.action_space,
            "options": policy.options,
            "source_names": policy.options.source_names,
            "n_envs": 1,
        }
        states = [policy, policy.optimizer, policy.termination_optimizer]
    except Exception as error:  # a description that was changed by hand may raise anything
        raise _damaged(path, error, f", or does not fit policy_kwargs {policy_kwargs}" * bool(policy_kwargs)) from error
    saved, names = io.BytesIO(), ("policy", "policy.optimizer", "policy.termination_optimizer")
    save_to_zip_file(saved, data, {name: state.state_dict() for name, state in zip(names, states, strict=True)})
    saved.seek(0)
    return saved


def _write(path: str | Path, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    everything: dict[str, Any] = {"description": np.array(json.dumps({"format": FORMAT, **content})), **arrays}
    with atomic_write(path, suffix="npz") as file:
        np.savez_compressed(file, **everything)


def _read(path: ModelPath) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """
    :param path: what ``_write`` wrote
    :return: the description and the arrays
    """
    try:
        # Without pickles an array is numbers and nothing else
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        content = json.loads(arrays.pop("description").item())
        if content["format"] != FORMAT:
            raise ValueError(f"it is '{content['format']}', and this version reads '{FORMAT}'")
    except Exception as error:  # there is nothing that a zip file with other bits in it may not raise
        raise _damaged(path, error) from error
    return content, arrays


def _damaged(path: ModelPath, error: Exception, or_else: str = "") -> ValueError:
    return ValueError(f"{path} is damaged, or no export{or_else} ({type(error).__name__}: {error}).")


def _describe_source(source: SourcePolicy, arrays: dict[str, np.ndarray], prefix: str) -> dict[str, Any]:
    if source.policy is None or source.observation_map is not None or source.action_map is not None:
        what = "is a function" if source.policy is None else "has an observation_map or an action_map"
        raise ValueError(f"Source policy '{source.name}' {what}, which is code, and cannot be exported: save it.")
    return {
        "name": source.name,
        "policy": _describe_policy(source.policy, arrays, prefix, source.name),
        "normalizer": describe_normalizer(getattr(source.act, "normalizer", None), arrays, prefix, source.name),
    }


def _build_source(description: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str) -> SourcePolicy:
    normalizer = build_normalizer(description["normalizer"], arrays, prefix)
    return _source_of(_build_policy(description["policy"], arrays, prefix), str(description["name"]), normalizer)


def _source_of(policy: Any, name: str, normalizer: ObservationNormalizer | None) -> SourcePolicy:
    act = PolicyAct(policy, None if normalizer is None else normalizer.statistics)
    return SourcePolicy(act, name, observation_space=policy.observation_space, action_space=policy.action_space)


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
    elif getattr(policy, "use_sde", False):
        refused = "a policy with use_sde"
    if kind is None or refused is not None:
        raise ValueError(
            f"'{name}' is {refused} and cannot be exported, only plain policies of DQN, PPO, A2C and CAPS: save it."
        )
    description: dict[str, Any] = {
        "kind": kind,
        "observation_space": describe_space(policy.observation_space, arrays, f"{prefix}/observations", name),
        "action_space": describe_space(policy.action_space, arrays, f"{prefix}/actions", name),
        "activation_fn": policy.activation_fn.__name__,
        "features_extractor": policy.features_extractor_class.__name__,
        "features_extractor_kwargs": policy.features_extractor_kwargs,
        "arguments": {key: getattr(policy, key) for key in PLAIN_ARGUMENTS[kind]},
    }
    if kind == "caps":
        options: OptionSet = policy.options
        description["arguments"] |= {"execution": policy.execution_mode, "margin": policy.margin}
        description["options"] = {
            "observation_space": describe_space(options.observation_space, arrays, f"{prefix}/emitted", name),
            "normalizer": describe_normalizer(options.normalizer, arrays, f"{prefix}/emitted", name),
            "sources": [_describe_source(source, arrays, f"{prefix}/{i}") for i, source in enumerate(options.sources)],
        }
    arrays |= {f"{prefix}/{key}": value.detach().cpu().numpy() for key, value in policy.state_dict().items()}
    # Whatever else it is made of would be lost in silence
    try:
        same = _layers(_build_policy(description, arrays, prefix)) == _layers(policy)
    except (KeyError, RuntimeError):
        same = False
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


def _network_arguments(description: dict[str, Any]) -> dict[str, Any]:
    given = description["features_extractor_kwargs"]
    return {
        "net_arch": description["arguments"]["net_arch"],
        "normalize_images": bool(description["arguments"]["normalize_images"]),
        "activation_fn": ACTIVATIONS[description["activation_fn"]],
        "features_extractor_class": EXTRACTORS[description["features_extractor"]],
        "features_extractor_kwargs": {key: given[key] for key in EXTRACTOR_ARGUMENTS if key in given},
    }


def _build_policy(
    description: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str, others: dict[str, Any] | None = None
) -> Any:
    """
    :param description: what ``_describe_policy`` returned
    :param arrays: the parameters
    :param prefix: what their names begin with
    :param others: arguments in place of those that were described
    :return: the policy
    """
    kind = description["kind"]
    observation_space = build_space(description["observation_space"], arrays, f"{prefix}/observations")
    action_space = build_space(description["action_space"], arrays, f"{prefix}/actions")
    known = {*PLAIN_ARGUMENTS[kind], *(("execution", "margin") if kind == "caps" else ())}
    arguments = {key: value for key, value in description["arguments"].items() if key in known}
    arguments |= _network_arguments(description)
    if kind == "caps":
        given = description["options"]
        sources = [_build_source(source, arrays, f"{prefix}/{i}") for i, source in enumerate(given["sources"])]
        emitted = build_space(given["observation_space"], arrays, f"{prefix}/emitted")
        arguments["options"] = OptionSet(sources, emitted, action_space)
        arguments["options"].normalizer = build_normalizer(given["normalizer"], arrays, f"{prefix}/emitted")
    policy = pkgutil.resolve_name(POLICIES[kind])(
        observation_space, action_space, lambda _: 1e-4, **{**arguments, **(others or {})}
    )
    policy.load_state_dict({key: th.as_tensor(arrays[f"{prefix}/{key}"]) for key in policy.state_dict()})
    return policy
