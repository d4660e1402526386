"""Making source policies of models of any framework, files, folders, import strings and functions."""

import copy
import inspect
import io
import os
import pickle
import pkgutil
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sb3_caps.extras import import_string
from sb3_caps.files.saved_models import check_format
from sb3_caps.sources.act import ActionFunction, FunctionAct, PolicyAct, SourcePolicy
from sb3_caps.sources.frameworks import ONNX, TORCH_SCRIPT, ModuleAct, OnnxAct, PredictAct, TorchScriptAct

IMPORT_STRING = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
# What rl_zoo3 calls models beside <Env>.zip
ZOO_NAME = re.compile(r"best_model|rl_model_\d+_steps")


def as_source(
    source: Any,
    name: str | None = None,
    observation_map: ActionFunction | None = None,
    action_map: ActionFunction | None = None,
    trust: bool = True,
    deterministic: bool | None = None,
) -> SourcePolicy:
    """
    Make a source policy out of anything that acts. Files and import strings run code: pass only those that you trust,
    or ``trust=False``. Exports (of ``export_source`` and ``CAPS.export``) run nothing.

    :param source: an SB3 or sb3-contrib algorithm or policy; the path of a saved model, an export, a TorchScript or
        ONNX file (extra ``onnx``), or a folder with one of these; an import string ``package.module:function``; a
        module of torch that returns actions, or a logit or value for each; an object with ``predict``; or a callable
        from a batch of observations to a batch of actions (see ``each`` for a function of one observation)
    :param name: its name in logs and figures, by default that of the file, function or class
    :param observation_map: converts a batch of the target's observations to the source's
    :param action_map: converts a batch of the source's actions to the target's
    :param trust: whether files and import strings may run code; if not, only exports are read
    :param deterministic: whether it always takes its likeliest action. With False, models such as PPO's and A2C's draw
        their actions, which helps in partially observed tasks. None for True, or for what a ``SourcePolicy`` already
        does.
    :return: the source policy
    """
    check_trust(trust)
    if isinstance(source, SourcePolicy):
        result = copy.copy(source)
    elif isinstance(source, str) and IMPORT_STRING.fullmatch(source) and not Path(source).exists():
        if not trust:
            raise ValueError(refusal(source))
        result = as_source(import_string(source))
    elif isinstance(source, (str, os.PathLike)):
        result = _from_file(model_file(Path(source)), observation_map is None, trust)
    elif isinstance(source, BaseAlgorithm):
        result = _from_policy(source.policy, type(source).__name__.lower(), source.get_vec_normalize_env())
        result.ent_coef = _ent_coef(vars(source))
    elif isinstance(source, nn.Module):
        result = _from_module(source)
    elif callable(getattr(source, "predict", None)) and not isinstance(source, type):
        result = SourcePolicy(PredictAct(source), type(source).__name__)
    elif callable(source):
        result = SourcePolicy(FunctionAct(source), getattr(source, "__name__", type(source).__name__))
    else:
        raise ValueError(
            f"{source!r} is not a source policy: pass an SB3 algorithm or policy, the path of a saved model, an import "
            "string 'package.module:function', a module of torch, an object with a method predict, or a callable from "
            "observations to actions."
        )
    if name is not None:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"The name of a source policy must be a string that is not empty, not {name!r}.")
        result.name, result.explicit_name = name, True
    if deterministic is not None:
        result.deterministic = deterministic
    result.observation_map = observation_map or result.observation_map
    result.action_map = action_map or result.action_map
    return result


def as_sources(source_policies: Iterable[Any] | Mapping[str, Any] | None, trust: bool = True) -> list[SourcePolicy]:
    """
    Make source policies out of the argument ``source_policies`` of an algorithm.

    :param source_policies: a list of anything that ``as_source`` takes, or a dictionary of them by name
    :param trust: see ``as_source``
    :return: the source policies
    """
    if source_policies is None:
        return []
    if isinstance(source_policies, Mapping):
        return [as_source(source, name, trust=trust) for name, source in source_policies.items()]
    if isinstance(source_policies, (str, bytes, Set, nn.Module)) or not isinstance(source_policies, Iterable):
        raise ValueError(
            "source_policies must be a list of source policies (an empty one is fine) or a dictionary of them by name, "
            f"not {source_policies!r}: pass [as_source(policy, name=...), ...] or {{name: policy, ...}}."
        )
    return [as_source(source, trust=trust) for source in source_policies]


def _from_module(module: nn.Module) -> SourcePolicy:
    # What torch.compile makes of a module has the module itself
    module = getattr(module, "_orig_mod", module)
    if isinstance(module, BasePolicy):
        return _from_policy(module, type(module).__name__)
    if isinstance(module, th.jit.ScriptModule):
        content = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            th.jit.save(module, content)
        return SourcePolicy(TorchScriptAct(content.getvalue()), getattr(module, "original_name", "TorchScript"))
    if callable(getattr(module, "predict", None)):
        return SourcePolicy(PredictAct(module), type(module).__name__)
    return SourcePolicy(ModuleAct(module), type(module).__name__)


def _from_policy(policy: BasePolicy, name: str, normalizer: VecNormalize | None = None) -> SourcePolicy:
    policy = getattr(policy, "_orig_mod", policy)
    return SourcePolicy(
        PolicyAct(policy, normalizer),
        name,
        observation_space=policy.observation_space,
        action_space=policy.action_space,
    )


def check_trust(trust: Any) -> None:
    """
    Refuse what only looks like a no: ``"False"`` is true.

    :param trust: what was passed
    """
    if not isinstance(trust, bool):
        raise ValueError(f"trust must be True or False, not {trust!r}.")


def refusal(path: Any) -> str:
    """
    :param path: a file or an import string that may not be loaded
    :return: why not, and what to do
    """
    return (
        f"{path} is not an export, or a damaged one, and loading anything else may run code: with trust=False only "
        "what export_source and CAPS.export wrote is loaded. Pass trust=True if you trust it."
    )


def _from_file(path: Path, strict: bool, trust: bool) -> SourcePolicy:
    """
    :param path: the file of a saved model or an export
    :param strict: whether to refuse it where its normalisation is not certain
    :param trust: whether it may run code
    :return: the source policy
    """
    # Exports are built of all that is here
    from sb3_caps.files.export import is_export, source_from_export

    if is_export(path):
        return source_from_export(path)
    if not trust:
        raise ValueError(refusal(path))
    if path.suffix in (*TORCH_SCRIPT, ONNX):
        return SourcePolicy(_from_network_file(path), path.stem)
    data, parameters, variables, unread = _read(path)
    arguments = {**(data.get("policy_kwargs") or {}), **_algorithm_arguments(path, data, unread)}
    arguments.pop("device", None)
    try:
        # Only the policy is built: the algorithm would allocate its replay buffer
        policy = _build_policy(data, arguments)
        policy.load_state_dict(parameters["policy"])
    except Exception as error:
        raise _unusable(path, error, unread) from error
    if "options" in data:
        # A model of ours carries its normalisation: its own sources see what the environment emits
        own = data["options"].normalizer
        normalizer = None if own is None else own.statistics
    else:
        normalizer = saved_normalizer(path, strict)
        if normalizer is None and strict:
            _warn_of_lost_normalisation(path, data)
    # Names like `best_model` say nothing: the folder of the run does
    says_nothing = path.stem in ("model", "rl_model") or ZOO_NAME.fullmatch(path.stem)
    name = path.parent.name if says_nothing and path.parent.name else path.stem
    result = _from_policy(policy, name, normalizer)
    result.ent_coef = _ent_coef(variables)
    return result


def _ent_coef(variables: Mapping[str, Any]) -> float | None:
    """:return: what entropy counts for in SAC, as its models keep it"""
    learned, fixed = variables.get("log_ent_coef"), variables.get("ent_coef_tensor")
    if isinstance(learned, th.Tensor):
        return float(learned.detach().exp())
    return float(fixed) if isinstance(fixed, th.Tensor) else None


def _from_network_file(path: Path) -> TorchScriptAct | OnnxAct:
    try:
        if path.suffix != ONNX:
            _check_torch_script(path)
        content = path.read_bytes()
        return OnnxAct(content) if path.suffix == ONNX else TorchScriptAct(content)
    except ImportError:
        raise
    except Exception as error:  # damaged files raise anything
        if path.suffix == ONNX:
            what = "ONNX model: pass one that is a single file, without external data"
        else:
            what = "TorchScript file: pass what torch.jit.save wrote, or load what it holds and pass the module"
        raise ValueError(f"{path} is not a usable {what} ({type(error).__name__}: {error}).") from error


def _check_torch_script(path: Path) -> None:
    """Before it is read: what ``torch.save`` wrote has the same names, and may be large."""
    with zipfile.ZipFile(path) as archive:
        if not any(name.endswith(("/constants.pkl", "/model.json")) for name in archive.namelist()):
            raise ValueError("there is no code in it")


def _warn_of_lost_normalisation(path: Path, data: dict[str, Any]) -> None:
    # What learns on policy keeps an observation from before a VecNormalize, and none without one
    if "rollout_buffer_class" not in data or data.get("_last_original_obs") is None:
        return
    warnings.warn(
        f"{path} was trained with a VecNormalize, which is not there: if it normalised observations, the model acts on "
        f"others than it knows. Put it at {path.with_suffix('') / 'vecnormalize.pkl'}, or load the model with its "
        "class and env=VecNormalize.load(...), and pass the model.",
        stacklevel=4,
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
    """
    :param path: the file of a saved model
    :return: the attributes of the model, its parameters and variables, and what was said of attributes that could not
        be read
    """
    try:
        with zipfile.ZipFile(path) as archive:
            check_format(archive)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data, parameters, variables = load_from_zip_file(path, device="cpu")
    except ImportError as error:
        raise ValueError(
            f"{path} cannot be loaded without the module '{error.name}' ({error}): install it or put it on the path of "
            "Python."
        ) from error
    except Exception as error:  # damaged files raise anything
        raise _unusable(path, error) from error
    return data or {}, parameters or {}, variables or {}, [str(warning.message) for warning in caught]


def _algorithm_arguments(path: Path, data: dict[str, Any], unread: list[str]) -> dict[str, Any]:
    """What a policy of ours takes beside the user's ``policy_kwargs``: its algorithm knows."""
    if "source_names" not in data:
        return {}
    try:
        algorithm = pkgutil.resolve_name(data["algorithm_class"])
    except (KeyError, ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"The algorithm of {path} cannot be imported ({type(error).__name__}: {error}): load the model with its "
            "class, and pass the model."
        ) from error
    model = algorithm.__new__(algorithm)
    vars(model).update(data)
    try:
        return model._policy_arguments()
    except AttributeError as error:
        raise ValueError(
            f"{path} was saved without its source policies {data['source_names']}, or they cannot be loaded here "
            f"({'; '.join(unread) or error}): load it with {algorithm.__name__}.load(..., source_policies=[...]), and "
            "pass the model."
        ) from error


def _build_policy(data: dict[str, Any], arguments: dict[str, Any]) -> BasePolicy:
    policy_class = data["policy_class"]
    positional = [data["observation_space"], data["action_space"]]
    # Policies of ARS have no optimizer, and take no learning rate
    if any("lr_schedule" in inspect.signature(base.__init__).parameters for base in policy_class.__mro__):
        positional.append(lambda _: 0.0)
    return policy_class(*positional, **arguments)


def _unusable(path: Path, error: Exception, unread: Sequence[str] = ()) -> ValueError:
    reasons = "; ".join([f"{type(error).__name__}: {error}", *unread])
    return ValueError(
        f"{path} is not a usable saved SB3 model ({reasons}): pass the .zip file that `model.save` wrote, or the model."
    )


def model_file(path: Path) -> Path:
    """The saved model that a user's path means: a file, with or without ``.zip``, or a folder that rl_zoo3 wrote."""
    if path.is_dir():
        if (path / "best_model.zip").is_file():
            return path / "best_model.zip"
        kinds = [sorted(path.glob(f"*{suffix}")) for suffix in (".zip", ONNX, *TORCH_SCRIPT)]
        found = next(filter(None, kinds), [])
        if len(found) != 1:
            raise ValueError(f"The folder {path} holds {len(found)} saved models: pass the path of one of them.")
        return found[0]
    if not path.exists() and path.suffix not in (".zip", ".npz", ONNX, *TORCH_SCRIPT):
        exported = path.with_name(path.name + ".npz")
        path = path.with_name(path.name + ".zip")
        path = exported if exported.exists() and not path.exists() else path
    if not path.is_file():
        raise FileNotFoundError(f"There is no saved model at {path}.")
    return path


def saved_normalizer(path: Path, strict: bool) -> VecNormalize | None:
    """
    Load the VecNormalize that was saved with a model. No other file is opened: loading it could run anything.

    :param path: the file of the model
    :param strict: whether to refuse the model where there is a file that may be its own
    :return: the VecNormalize, None if there is none
    """
    folder = path.parent
    own = [
        # rl_zoo3: <Env>.zip beside <Env>/vecnormalize.pkl
        folder / path.stem / "vecnormalize.pkl",
        # SB3's CheckpointCallback
        folder / re.sub(r"_(\d+_steps)$", r"_vecnormalize_\1.pkl", path.stem),
    ]
    if folder.parent.name == "snapshots":
        # Hugging Face's cache: a snapshot is one repository, and one of rl_zoo3's holds one model
        own.append(folder / "vec_normalize.pkl")
    others = [folder / "vecnormalize.pkl", folder / "vec_normalize.pkl"]
    if ZOO_NAME.fullmatch(path.stem):
        # rl_zoo3: <Env>_<number>/best_model.zip beside <Env>_<number>/<Env>/vecnormalize.pkl
        if run := re.fullmatch(r"(.+)_\d+", folder.resolve().name):
            own.append(folder / run[1] / "vecnormalize.pkl")
        others += folder.glob("*/vecnormalize.pkl")
    for file in own:
        if file.is_file() and file.suffix == ".pkl":
            return _load_normalizer(file, path)
    found = [str(file) for file in others if file.is_file()]
    if found and strict:
        raise ValueError(
            f"It is not certain whether {' or '.join(found)} is the normalisation of {path}: load the model with its "
            "class, with env=VecNormalize.load(...) if it has one, and pass the model, or pass as_source(..., "
            "observation_map=...) that does what is needed."
        )
    return None


def _load_normalizer(file: Path, model: Path) -> VecNormalize:
    try:
        with file.open("rb") as opened:
            found = pickle.load(opened)
    except Exception as error:  # damaged pickles raise anything
        raise ValueError(
            f"{file}, the normalisation of {model}, cannot be read ({type(error).__name__}: {error})."
        ) from error
    if not isinstance(found, VecNormalize):
        raise ValueError(f"{file}, the normalisation of {model}, holds no VecNormalize, but {type(found).__name__}.")
    return found
