"""Sources that were not made with SB3: modules of torch, TorchScript and ONNX files, and objects that predict."""

import io
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from torch import nn

from sb3_caps import CAPS, as_source
from sb3_caps.reuse.options import OptionSet
from tests.toy_world import LENGTH, Corridor, masks_of, positions

OBSERVATIONS = np.eye(LENGTH, dtype=np.float32)
STARTS = np.ones(LENGTH, dtype=bool)
N_ACTIONS = 3
# The module's favourite action in each cell, by its weights
FAVOURITES = np.arange(LENGTH) % N_ACTIONS


def scores() -> Any:
    """A network whose highest score is that of the favourite action."""
    layer = nn.Linear(LENGTH, N_ACTIONS)
    with th.no_grad():
        layer.weight.copy_(th.as_tensor(np.eye(N_ACTIONS)[FAVOURITES].T))
        layer.bias.zero_()
    return nn.Sequential(nn.Identity(), layer)


class WithValue(nn.Module):
    """As actor-critics are: logits and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.network = scores()

    def forward(self, observations: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        return self.network(observations), observations.sum(dim=1)


class Chooses(nn.Module):
    """Actions and no scores, in a column."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return (observations.argmax(dim=1) % 3).unsqueeze(1)


def exported(module: nn.Module, example: th.Tensor, dynamic: bool = True) -> bytes:
    file = io.BytesIO()
    axes = {"obs": {0: "batch"}, "scores": {0: "batch"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        th.onnx.export(
            module,
            (example,),
            file,  # type: ignore[arg-type]
            input_names=["obs"],
            output_names=["scores"],
            dynamic_axes=axes,
            dynamo=False,
        )
    return file.getvalue()


def actions_of(given: Any, observations: Any = OBSERVATIONS, rng: Any = None, **arguments: Any) -> list[int]:
    """What an option set makes of a source, and of the same source saved and loaded."""
    source = as_source(given, **arguments)
    space: spaces.Space = Corridor().observation_space
    found: list[np.ndarray] = []
    for each in (source, pickle.loads(cloudpickle.dumps(source))):
        options = OptionSet([each], space, spaces.Discrete(N_ACTIONS))
        generator = None if rng is None else np.random.default_rng(rng)
        found.append(options.actions(observations, (None,), STARTS[: len(observations)], rng=generator)[0][:, 0])
    np.testing.assert_array_equal(found[0], found[1])
    return found[0].tolist()


@pytest.mark.parametrize(
    "make",
    [
        scores,
        lambda: scores().double(),
        lambda: scores().train(),
        WithValue,
        Chooses,
        lambda: th.jit.script(scores()),
        lambda: th.compile(scores(), backend="eager"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_module_of_torch(make: Callable[[], nn.Module]) -> None:
    module = make()
    assert actions_of(module) == FAVOURITES.tolist()
    # One by one, as many at once
    assert [actions_of(module, row[None])[0] for row in OBSERVATIONS] == FAVOURITES.tolist()


def test_a_module_is_copied_and_not_trained() -> None:
    module: Any = nn.Sequential(scores(), nn.Dropout(0.9))
    source = as_source(module)
    assert (source.name, source.kind, source.deterministic) == ("Sequential", "Sequential", True)
    with th.no_grad():
        module[0][1].weight.zero_()
    assert actions_of(source) == FAVOURITES.tolist()
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    model = CAPS("MlpPolicy", Corridor(), source_policies=[source], seed=0)
    assert model.learn(30).num_timesteps == 30


def test_scores_can_be_drawn_from() -> None:
    # One network is as sure as e to 1, the other one altogether
    sure = scores()
    with th.no_grad():
        sure[1].weight.mul_(100.0)
    assert actions_of(sure, rng=0, deterministic=False) == FAVOURITES.tolist()
    unsure = actions_of(scores(), rng=0, deterministic=False)
    assert unsure != FAVOURITES.tolist()
    assert unsure == actions_of(scores(), rng=0, deterministic=False)
    assert actions_of(scores(), rng=0) == FAVOURITES.tolist()


def test_what_a_module_gets() -> None:
    seen: list[Any] = []

    class Sees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(th.zeros(1, dtype=th.float64))

        def forward(self, observations: Any) -> th.Tensor:
            seen.append(observations)
            return th.zeros(2, N_ACTIONS)

    act = as_source(Sees()).act
    for values in (np.zeros((2, 3), np.float32), np.zeros((2, 3, 3), np.uint8), np.zeros((2, 4), bool)):
        act(values, None, STARTS[:2])
        assert seen[-1].dtype == th.float64
    for numbers in (np.zeros(2, np.int64), np.zeros((2, 3), np.int32)):
        act(numbers, None, STARTS[:2])
        assert not seen[-1].is_floating_point()
    act({"a": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.int64)}, None, STARTS[:2])
    assert {key: value.dtype for key, value in seen[-1].items()} == {"a": th.float64, "b": th.int64}


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (
            nn.Linear(7, N_ACTIONS),
            RuntimeError,
            r"'Linear' failed: RuntimeError: mat1 .* given observations of shape \(2, 10\) and type float32",
        ),
        (nn.Linear(LENGTH, 5), ValueError, r"'Linear' returns 5 numbers .* takes Discrete\(3\): expected one for each"),
        (nn.Linear(LENGTH, 1), ValueError, r"'Linear' returns 1 numbers for an observation"),
        (nn.Sequential(nn.Linear(LENGTH, 3), nn.Flatten(0)), ValueError, r"returned actions of shape \(6,\)"),
        (nn.Sequential(nn.Linear(LENGTH, 1), nn.Flatten(0)), ValueError, r"'Sequential' returned float32 actions"),
    ],
)
def test_a_module_that_does_not_fit_is_told_at_once(module: nn.Module, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CAPS("MlpPolicy", Corridor(), source_policies=[module])


def test_an_action_map_fits_a_module_of_other_actions() -> None:
    module = nn.Sequential(nn.Linear(LENGTH, 5))
    assert set(actions_of(module, action_map=lambda actions: actions % 3)) <= {0, 1, 2}


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("suffix", [".pt", ".ts", ".pth"])
def test_torch_script_files(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"walker{suffix}"
    th.jit.script(scores()).save(str(file))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = as_source(file)
    assert (source.name, source.kind) == ("walker", "TorchScript")
    for given in (source, str(file), tmp_path):
        assert actions_of(given) == FAVOURITES.tolist()
    with pytest.raises(ValueError, match=r"is not an export, or a damaged one.*trust=False"):
        as_source(file, trust=False)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x03\x04 and then nothing"])
@pytest.mark.parametrize(("suffix", "what"), [(".pt", "TorchScript file: pass what torch.jit.save"), (".onnx", "ONNX")])
def test_files_that_cannot_be_used(suffix: str, what: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"file{suffix}").write_bytes(content)
    with pytest.raises(ValueError, match=rf"file{suffix} is not a usable {what}"):
        as_source(tmp_path / f"file{suffix}")
    with pytest.raises(FileNotFoundError, match=rf"no saved model at .*other{suffix}\."):
        as_source(tmp_path / f"other{suffix}")


def test_weights_alone_are_no_network(tmp_path: Path) -> None:
    th.save(scores().state_dict(), tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"weights.pth is not a usable TorchScript file: .* load what it holds"):
        as_source(tmp_path / "weights.pth")


@pytest.mark.parametrize("dynamic", [True, False])
def test_onnx_files(dynamic: bool, tmp_path: Path) -> None:
    file = tmp_path / "walker.onnx"
    file.write_bytes(exported(scores(), th.zeros(1, LENGTH), dynamic))
    source = as_source(file)
    assert (source.name, source.kind, source.deterministic) == ("walker", "ONNX", True)
    for given in (source, str(file), tmp_path):
        assert actions_of(given) == FAVOURITES.tolist()
    assert actions_of(file, rng=0, deterministic=False) != FAVOURITES.tolist()
    model = CAPS("MlpPolicy", Corridor(), source_policies=[file], seed=0)
    assert model.learn(30).num_timesteps == 30
    model.save(tmp_path / "model")
    assert CAPS.load(tmp_path / "model").source_names == ["walker"]
    with pytest.raises(ValueError, match=r"walker.onnx is not an export, or a damaged one.*trust=False"):
        as_source(file, trust=False)


def test_an_onnx_file_of_other_types(tmp_path: Path) -> None:
    module: Any = nn.Sequential(nn.Embedding(LENGTH, N_ACTIONS))
    with th.no_grad():
        module[0].weight.copy_(th.as_tensor(np.eye(N_ACTIONS)[FAVOURITES]))
    (tmp_path / "numbers.onnx").write_bytes(exported(module, th.zeros(1, dtype=th.int64)))
    model = CAPS("MlpPolicy", Corridor("discrete"), source_policies=[tmp_path / "numbers.onnx"])
    actions, _ = model.options.actions(np.arange(LENGTH), (None,), STARTS)
    assert actions[:, 0].tolist() == FAVOURITES.tolist()


class OfMlAgents(nn.Module):
    """What ML-Agents exports: an input for masks, and several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.network = scores()

    def forward(self, observations: th.Tensor, masks: th.Tensor) -> tuple[th.Tensor, ...]:
        allowed = self.network(observations) - 1e6 * (1.0 - masks)
        return th.full((1,), 3.0), allowed.argmax(dim=1, keepdim=True)


def test_a_model_of_ml_agents(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        th.onnx.export(
            OfMlAgents(),
            (th.zeros(1, LENGTH), th.ones(1, N_ACTIONS)),
            str(tmp_path / "agent.onnx"),
            input_names=["obs_0", "action_masks"],
            output_names=["version_number", "deterministic_discrete_actions"],
            dynamic_axes={"obs_0": {0: "batch"}, "action_masks": {0: "batch"}},
            dynamo=False,
        )
    source, masks = as_source(tmp_path / "agent.onnx"), masks_of(np.arange(LENGTH))
    assert source.takes_action_masks
    options = OptionSet([source], Corridor().observation_space, spaces.Discrete(N_ACTIONS))
    with pytest.warns(UserWarning, match="'agent' takes action masks and acts without them"):
        assert options.actions(OBSERVATIONS, (None,), STARTS)[0][:, 0].tolist() == FAVOURITES.tolist()
    actions = options.actions(OBSERVATIONS, (None,), STARTS, masks)[0][:, 0]
    assert masks[np.arange(LENGTH), actions].all()
    allowed = masks[np.arange(LENGTH), FAVOURITES]
    np.testing.assert_array_equal(actions[allowed], FAVOURITES[allowed])


def test_onnx_with_several_observations(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, image: th.Tensor, vector: th.Tensor) -> th.Tensor:
            return vector[:, :N_ACTIONS] + 0.0 * image.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        th.onnx.export(
            Two(),
            (th.zeros(1, 36, 36, 2), th.zeros(1, LENGTH)),
            str(tmp_path / "two.onnx"),
            input_names=["image", "vector"],
            dynamic_axes={"image": {0: "batch"}, "vector": {0: "batch"}},
            dynamo=False,
        )
    model = CAPS("MultiInputPolicy", Corridor("dict"), source_policies=[tmp_path / "two.onnx"], buffer_size=10)
    images = np.zeros((LENGTH, 36, 36, 2), dtype=np.uint8)
    actions, _ = model.options.actions({"image": images, "vector": OBSERVATIONS}, (None,), STARTS)
    assert actions[:3, 0].tolist() == [0, 1, 2]
    with pytest.raises(
        RuntimeError, match="'two' failed: ValueError: it takes image, vector, and the environment emits"
    ):
        CAPS("MlpPolicy", Corridor(), source_policies=[tmp_path / "two.onnx"])


def test_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "walker.onnx"
    file.write_bytes(exported(scores(), th.zeros(1, LENGTH)))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"This needs onnxruntime: pip install 'sb3-caps\[onnx\]'"):
        as_source(file)


def test_a_folder_with_several_files(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="holds 2 saved models: pass the path of one of them"):
        as_source(tmp_path)


class Predicts:
    """As models of other libraries do."""

    def __init__(self, answer: Callable[[np.ndarray], Any]) -> None:
        self.answer = answer

    def predict(self, observations: np.ndarray) -> Any:
        return self.answer(positions(observations))


@pytest.mark.parametrize(
    "answer",
    [
        lambda places: places % 3,
        lambda places: (places % 3)[:, None],
        lambda places: (places % 3, None),
        lambda places: (places % 3, {"any": "state"}),
        lambda places: (th.as_tensor(places % 3), ()),
        lambda places: np.eye(3)[places % 3],
    ],
)
def test_objects_that_predict(answer: Callable[[np.ndarray], Any]) -> None:
    assert actions_of(Predicts(answer)) == FAVOURITES.tolist()
    source = as_source(Predicts(answer))
    assert (source.name, source.kind, source.deterministic) == ("Predicts", "Predicts", True)


class PredictsAsSB3(nn.Module):
    """With the arguments of SB3's ``predict``: it counts the steps of each episode, and draws if it may."""

    def predict(
        self,
        observation: np.ndarray,
        state: np.ndarray | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        assert episode_start is not None
        steps = np.zeros(len(observation), dtype=int) if state is None else state
        steps = np.where(episode_start, 0, steps + 1)
        actions = steps % 3 if deterministic else th.randint(3, (len(observation),)).numpy()
        return actions, steps


@pytest.mark.filterwarnings("ignore:Source policy 'PredictsAsSB3' takes action masks")
def test_an_object_gets_what_it_takes_of_sb3s_arguments() -> None:
    source, state, found = as_source(PredictsAsSB3()), None, []
    assert source.takes_action_masks
    for step in range(6):
        actions, state = source.actions(OBSERVATIONS[:1], state, np.array([step in (0, 4)]))
        found.append(int(actions[0]))
    assert found == [0, 1, 2, 0, 0, 1]
    before = th.get_rng_state()
    drawn = actions_of(PredictsAsSB3(), rng=1, deterministic=False)
    assert drawn == actions_of(PredictsAsSB3(), rng=1, deterministic=False)
    assert len(set(drawn)) == 3
    assert th.equal(th.get_rng_state(), before)
    with pytest.raises(ValueError, match="'Predicts' has no probabilities"):
        as_source(Predicts(lambda places: places), deterministic=False)


def test_what_is_no_source() -> None:
    with pytest.raises(
        ValueError, match=r"3 is not a source policy: pass an SB3 algorithm.*an object with a method predict"
    ):
        as_source(3)


class OneGoal(Corridor):
    """As environments of goals are."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            {key: spaces.Box(0, 1, (2,), np.float32) for key in ("observation", "achieved_goal", "desired_goal")}
        )

    def observe(self) -> Any:
        return {key: np.zeros(2, np.float32) for key in ("observation", "achieved_goal", "desired_goal")}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> np.ndarray:
        return np.zeros(len(achieved), dtype=np.float32)


def test_models_of_goals_are_told_by_name() -> None:
    goals: dict[str, Any] = {"replay_buffer_class": HerReplayBuffer, "buffer_size": 10}
    model = DQN("MultiInputPolicy", OneGoal(), **goals)
    with pytest.raises(
        ValueError, match=r"'dqn' was trained for goals \(HER\) and expects observations of Dict.*emits Box"
    ):
        CAPS("MlpPolicy", Corridor(), source_policies=[model])
    caps = CAPS("MultiInputPolicy", OneGoal(), source_policies=[model], buffer_size=100)
    assert caps.learn(10).num_timesteps == 10


@pytest.mark.parametrize("algorithm", [SAC, PPO])
def test_continuous_actions_are_told_first(algorithm: type[Any], tmp_path: Path) -> None:
    model = algorithm("MlpPolicy", "Pendulum-v1", **({"buffer_size": 10} if algorithm is SAC else {"n_steps": 8}))
    model.save(tmp_path / "pendulum")
    for given in (model, tmp_path / "pendulum"):
        with pytest.raises(
            ValueError, match=r"has continuous actions, Box\(-2.0, 2.0, .*takes Discrete\(3\): pass as_s"
        ):
            CAPS("MlpPolicy", Corridor(), source_policies=[given])
    source = as_source(
        model,
        observation_map=lambda observations: observations[:, :3],
        action_map=lambda actions: np.digitize(actions[:, 0], [-1.0, 1.0]),
    )
    assert set(actions_of(source)) <= {0, 1, 2}
