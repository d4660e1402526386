"""Sources that come to a trained model and leave it: what stays keeps every number."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from sb3_contrib import RecurrentPPO
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps import CAPS, ContinuousCAPS
from sb3_caps.caps.arguments import PAPER
from sb3_caps.caps.gate import ACTOR, BEST, OPTIONS
from sb3_caps.caps.selection import CAPSSelector
from sb3_caps.reuse.growth import map_rows
from tests.toy_box import ToyBox, away, home
from tests.toy_world import LENGTH, RIGHT, Corridor, go_left, go_right, right_then_stay

CELLS = np.eye(LENGTH, dtype=np.float32)
GRID = np.stack(np.meshgrid(*[np.linspace(-1, 1, 5)] * 2), axis=-1).reshape(-1, 2).astype(np.float32)
SMALL: dict[str, Any] = {"learning_starts": 20, "seed": 1, "policy_kwargs": {"net_arch": [16]}, "device": "cpu"}


def caps(env: Any, sources: Any, **kwargs: Any) -> CAPS:
    return CAPS("MlpPolicy", env, source_policies=sources, **(SMALL | {"buffer_size": 2000} | kwargs))


def box(sources: Any, **kwargs: Any) -> ContinuousCAPS:
    arguments: dict[str, Any] = {**SMALL, "buffer_size": 2000, "batch_size": 16, "train_freq": 4}
    return ContinuousCAPS("MlpPolicy", make_vec_env(ToyBox, 2, seed=0), source_policies=sources, **(arguments | kwargs))


def corridors(kind: str = "box") -> VecEnv:
    return make_vec_env(lambda: Corridor(kind), n_envs=2, seed=0)


def everything(model: Any) -> dict[str, Any]:
    """All numbers of a model: parameters, optimizers, the replay buffer, and what is known of behaviours."""
    found: dict[str, Any] = {f"policy/{key}": value for key, value in model.policy.state_dict().items()}
    for name in ("optimizer", "actor_optimizer", "termination_optimizer"):
        optimizer: Any = getattr(model.policy, name, None)
        for i, parameter in enumerate([] if optimizer is None else optimizer.param_groups[0]["params"]):
            found |= {f"{name}/{i}/{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    buffer = model.replay_buffer
    for owner in (buffer, getattr(buffer, "answers", None), *getattr(buffer, "stores", {}).values()):
        for key, value in ({} if owner is None else vars(owner)).items():
            if isinstance(value, np.ndarray):
                found[f"{type(owner).__name__}/{key}"] = value
    if hasattr(buffer, "answers"):
        found |= {f"after_cut/{key}": value for key, value in buffer.answers.after_cut.items()}
    for name, known in getattr(model.selector, "evidence", {}).items():
        if known.n:
            found[f"evidence/{name}"] = np.array([known.n, known.mean, known.std])
    for name in ("_last_options", "_last_option_actions", "_last_source_actions"):
        if hasattr(model, name):
            found[name] = getattr(model, name)
    found["use"] = np.stack([model._use.steps, model._use.choices])
    found["gate"] = np.array([hash(model.gate.controller), *map(hash, sorted(model.gate.disabled))])
    return {
        key: np.array(value.numpy(force=True).copy() if isinstance(value, th.Tensor) else value)
        for key, value in found.items()
    }


def check_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], other[key], err_msg=key)


def acts(model: Any, observations: np.ndarray) -> list[np.ndarray]:
    """By all that may act, deterministically."""
    found, before = [], model.gate.controller
    for controller in (before, OPTIONS, ACTOR, BEST):
        model.gate.controller = controller
        found.append(model.predict(observations, deterministic=True)[0])
    model.gate.controller = before
    return found


def test_rows_of_a_layer_and_its_optimizer() -> None:
    layer, weight = th.nn.Linear(2, 3), th.arange(6.0).reshape(3, 2)
    layer.weight.data, layer.bias.data = weight.clone(), th.tensor([10.0, 11.0, 12.0])
    optimizer = th.optim.Adam(layer.parameters())
    layer(th.ones(1, 2)).square().sum().backward()
    optimizer.step()
    after, moments = layer.weight.data.clone(), optimizer.state[layer.weight]["exp_avg"].clone()
    map_rows(layer, [2, -1, 0], 7.0, 8.0, [optimizer])
    assert [*map(id, layer.parameters())] == [*map(id, optimizer.param_groups[0]["params"])]
    assert layer.out_features == 3
    assert layer.weight.tolist() == [after[2].tolist(), [7.0, 7.0], after[0].tolist()]
    state = optimizer.state[layer.weight]
    assert state["exp_avg"].tolist() == [moments[2].tolist(), [0.0, 0.0], moments[0].tolist()]
    assert layer.bias[1] == 8.0
    assert optimizer.state[layer.bias]["step"] == 1


@pytest.mark.parametrize(
    ("kind", "sources"),
    [("box", []), ("box", [go_left, right_then_stay]), ("image", [go_left, right_then_stay])],
)
def test_adding_and_removing_leaves_every_number(kind: str, sources: list[Any]) -> None:
    policy = {"box": "MlpPolicy", "dict": "MultiInputPolicy", "image": "CnnPolicy"}[kind]
    arguments = SMALL | {"buffer_size": 80, "train_freq": 2, "actor_kwargs": {"interval": 32}, "batch_size": 32}
    model = CAPS(policy, corridors(kind), source_policies=sources, **arguments).learn(400 if kind == "box" else 60)
    before, rng = everything(model), model.rng.bit_generator.state
    torch_state = th.get_rng_state()
    assert model.add_source(go_right, name="new") == "new"
    assert model.options.names[: len(sources) + 1] == [*(source.__name__ for source in sources), "new"]
    assert model.source_policies[-1].name == "new"
    model.remove_source("new")
    check_same(everything(model), before)
    assert model.rng.bit_generator.state == rng
    assert th.equal(th.get_rng_state(), torch_state)
    assert not getattr(model.selector, "surveying", True) or not sources or kind != "box"


@pytest.mark.parametrize("settings", [{}, PAPER, {"termination": 0.5}, {"safe": False}])
@pytest.mark.parametrize("sources", [[], [go_left]])
def test_a_new_source_changes_nothing_at_first(settings: dict[str, Any], sources: list[Any]) -> None:
    """In any state, whoever acts; and the model learns on."""
    policy_kwargs = {**settings.get("policy_kwargs", {}), "net_arch": [16]}
    model = caps(corridors(), sources, **{**settings, "policy_kwargs": policy_kwargs})
    model.learn(400)
    before, values = acts(model, CELLS), model.policy.values_and_terminations(CELLS)[0]
    primitives = {key: value for key, value in everything(model).items() if "optimizer" not in key}
    model.add_source(go_right)
    model.add_source(right_then_stay)
    for one, other in zip(acts(model, CELLS), before, strict=True):
        np.testing.assert_array_equal(one, other)
    after = model.policy.values_and_terminations(CELLS)[0]
    n = len(sources)
    np.testing.assert_allclose(after[:, n + 2 :], values[:, n:], rtol=1e-6)
    for key in ("policy/q_net.q_net.0.weight", "policy/actor.value_net.0.weight"):
        np.testing.assert_array_equal(everything(model)[key], primitives[key])
    if model.policy.shared_values:
        np.testing.assert_allclose(after[:, n], after[:, n + 2 + RIGHT], atol=2e-6)
    model.learn(400, reset_num_timesteps=False)
    assert model.options.names[n : n + 2] == ["go_right", "right_then_stay"]
    assert model._use.steps[n : n + 2].sum() > 0
    if isinstance(model.selector, CAPSSelector):
        # The survey tries them first
        assert model.selector.of(model.selector.sources[n]).n >= 1
        assert not model.selector.surveying
        assert model.gate.controller.name != "go_left"


def test_the_actor_hardly_listens_to_a_new_source_and_can_come_to() -> None:
    model = caps(corridors(), [go_left], actor_kwargs={"interval": 64}).learn(500)
    features = model.q_net.features(th.as_tensor(CELLS))
    model.policy.actor.share.fill_(0.5)
    _, before = model.policy.actor(features, th.zeros(LENGTH, 1, dtype=th.long))
    model.add_source(go_right)
    votes = th.tensor([[0, RIGHT]]).expand(LENGTH, 2)
    _, after = model.policy.actor(features, votes)
    th.testing.assert_close(before, after, rtol=0, atol=1e-6)
    # The gradient is not dead: Adam needs no more of it
    optimizer = th.optim.Adam(model.policy.actor.policy_net.parameters(), lr=0.05)
    for _ in range(300):
        loss = -model.policy.actor(features, votes)[1][:, RIGHT].mean()
        model.policy.actor.policy_net.zero_grad()
        loss.backward()
        for parameter in model.policy.actor.policy_net[-1].parameters():
            assert parameter.grad is not None
            # Votes alone
            parameter.grad[2:] = 0.0
        optimizer.step()
    assert model.policy.actor(features, votes)[1].exp()[:, RIGHT].min() > 0.5


def test_agreements_of_a_new_source() -> None:
    """What it would have done in each step of the buffer, as if it had been there."""
    settings: dict[str, Any] = {"train_freq": 10, "safe": False, "buffer_size": 100, "learning_starts": 10_000}
    model, other = caps(corridors(), [right_then_stay], **settings), caps(corridors(), [], **settings)
    model.learn(330)
    buffer = model.replay_buffer
    expected = [buffer.option_actions.copy(), buffer.next_option_actions.copy()]
    not_terminal = ~(buffer.dones & ~buffer.timeouts)
    model.add_source(right_then_stay, name="again")
    buffer = model.replay_buffer
    assert buffer.n_sources == 2
    for values, known in zip((buffer.option_actions, buffer.next_option_actions), expected, strict=True):
        np.testing.assert_array_equal(values[..., :1], known)
        # Nothing follows a terminal state
        np.testing.assert_array_equal(values[not_terminal][:, 1:], known[not_terminal])
    other.learn(30)
    other.add_source(right_then_stay)
    n_rows = other.replay_buffer.size()
    assert (other.replay_buffer.option_actions[n_rows:] == -1).all()
    assert (other.replay_buffer.option_actions[:n_rows] >= 1).all()


def test_a_recurrent_source_is_unknown_before_it_came() -> None:
    recurrent = RecurrentPPO("MlpLstmPolicy", Corridor(), n_steps=8, batch_size=8, seed=0)
    model = caps(corridors(), [go_right]).learn(200)
    model.add_source(recurrent)
    assert (model.replay_buffer.option_actions[..., 1] == -1).all()
    model.learn(200, reset_num_timesteps=False)
    assert (model.replay_buffer.option_actions[100:200, :, 1] >= 0).all()


@pytest.mark.parametrize("settings", [{}, PAPER])
def test_a_run_without_a_source_is_one_of_a_model_loaded_without_it(settings: dict[str, Any], tmp_path: Path) -> None:
    sources = [go_left, right_then_stay, go_right]
    policy_kwargs = {**settings.get("policy_kwargs", {}), "net_arch": [16]}

    def first_half(env: VecEnv) -> CAPS:
        return caps(env, sources, **{**settings, "policy_kwargs": policy_kwargs}).learn(304)

    model = first_half(corridors())
    model.remove_source("right_then_stay")
    model.learn(200, reset_num_timesteps=False)
    env = corridors()
    half = first_half(env)
    half.save(tmp_path / "half")
    half.save_replay_buffer(tmp_path / "buffer")
    loaded = CAPS.load(tmp_path / "half", env=env, force_reset=False, source_policies=[go_left, go_right])
    loaded.load_replay_buffer(tmp_path / "buffer")
    loaded.learn(200, reset_num_timesteps=False)
    assert loaded.options.names == model.options.names
    check_same(everything(loaded), everything(model))


def test_a_source_removed_in_its_episode() -> None:
    """By a callback, in any step: what was left of the episode is nobody's evidence."""
    model = caps(corridors(), [go_left, go_right], train_freq=50)
    removed: list[int] = []

    def remove(found: dict[str, Any], _: dict[str, Any]) -> bool:
        acting = found["self"]._tracker.behaviours
        long = found["self"]._tracker.lengths > 5
        if not removed and any(each.name == "go_left" and late for each, late in zip(acting, long, strict=True)):
            removed.append(model.num_timesteps)
            known = model.selector.evidence["random"].n  # type: ignore[attr-defined]
            model.remove_source("go_left")
            model.add_source(go_left, name="later")
            assert model.selector.evidence["random"].n == known  # type: ignore[attr-defined]
        return True

    model.learn(1000, callback=ConvertCallback(remove))
    assert removed
    assert model.options.source_names == ["go_right", "later"]
    assert model.num_timesteps == 1000
    known = model.selector.evidence  # type: ignore[attr-defined]
    assert "go_left" not in known
    assert known["later"].n >= 1


def test_load_with_another_set(tmp_path: Path) -> None:
    model = caps(corridors(), {"a": go_left, "b": right_then_stay}).learn(300)
    model.save(tmp_path / "model")
    model.save(tmp_path / "bare", exclude=["options"])
    for name in ("model", "bare"):
        loaded = CAPS.load(tmp_path / name, env=corridors(), source_policies={"c": go_right, "b": right_then_stay})
        assert loaded.options.source_names == ["c", "b"]
        before, after = everything(model), everything(loaded)
        for key in ("policy/q_net.q_net.2.weight", "policy/q_net_best.q_net.2.weight", "optimizer/0/exp_avg"):
            assert key in after
        np.testing.assert_array_equal(
            after["policy/q_net.q_net.2.weight"][1:], before["policy/q_net.q_net.2.weight"][1:]
        )
        np.testing.assert_array_equal(after["evidence/b"], before["evidence/b"])
        assert "evidence/a" not in after
        # Without an environment, too
        assert CAPS.load(tmp_path / name, source_policies=[]).options.names == ["action_0", "action_1", "action_2"]
    loaded.learn(50, reset_num_timesteps=False)
    loaded.save(tmp_path / "again")
    check_policy = CAPS.load(tmp_path / "again")
    assert check_policy.options.source_names == ["c", "b"]
    np.testing.assert_array_equal(acts(check_policy, CELLS)[0], acts(loaded, CELLS)[0])


def test_export_after_adding(tmp_path: Path) -> None:
    models = {name: DQN("MlpPolicy", Corridor(), seed=i, buffer_size=10) for i, name in enumerate("abc")}
    model = caps(corridors(), {"a": models["a"]}).learn(300)
    model.add_source(models["b"], name="b")
    model.remove_source("a")
    model.add_source(models["c"], name="c")
    model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", env=corridors(), trust=False)
    assert loaded.options.source_names == ["b", "c"]
    for one, other in zip(acts(model, CELLS), acts(loaded, CELLS), strict=True):
        np.testing.assert_array_equal(one, other)
    fewer = CAPS.load(tmp_path / "model.npz", env=corridors(), source_policies={"c": models["c"], "d": go_right})
    assert fewer.options.source_names == ["c", "d"]
    fewer.learn(50)


def test_from_no_source_to_one_and_back() -> None:
    model = caps(corridors(), []).learn(400)
    model.add_source(go_right)
    model.learn(600, reset_num_timesteps=False)
    assert model.selector.of(model.selector.sources[0]).mean > 0.5  # type: ignore[attr-defined]
    model.remove_source("go_right")
    assert not model.gate.controller.is_source
    assert model.policy.actor.share == 0.0
    model.learn(400, reset_num_timesteps=False)
    assert model.options.names == ["action_0", "action_1", "action_2"]


def test_what_is_refused_changes_nothing() -> None:
    model = caps(corridors(), [go_right]).learn(200)
    before = everything(model)

    def fails(observations: Any) -> np.ndarray:
        raise KeyError("never seen")

    for call, message in (
        (lambda: model.remove_source("nobody"), r"no source policy 'nobody': pass one of \['go_right'\]"),
        (lambda: model.add_source(go_left, name="go_right"), "an option named 'go_right'"),
        (lambda: model.add_source(go_left, name="action_0"), "an option named 'action_0'"),
        (lambda: model.add_source(DQN("MlpPolicy", "CartPole-v1", buffer_size=10)), "expects observations"),
        (lambda: model.add_source(fails), "never seen"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            call()
    check_same(everything(model), before)
    assert model.options.source_names == ["go_right"]
    model.learn(50, reset_num_timesteps=False)


@pytest.mark.parametrize("sources", [[], [away], [home, away]])
def test_adding_and_removing_with_continuous_actions(sources: list[Any]) -> None:
    model = box(sources, buffer_size=200).learn(400)
    before, torch_state = everything(model), th.get_rng_state()
    expected = model.predict(GRID, deterministic=True)[0]
    model.add_source(home, name="new")
    assert model.options.names[-2:] == ["new", "actor"]
    np.testing.assert_allclose(model.predict(GRID, deterministic=True)[0], expected, atol=1e-6)
    model.remove_source("new")
    check_same(everything(model), before)
    assert th.equal(th.get_rng_state(), torch_state)
    model.add_source(home, name="new")
    model.learn(400, reset_num_timesteps=False)
    assert model.selector.rewards["new"].n >= 3


def test_answers_of_a_new_source() -> None:
    """As if it had been there, also where episodes end."""
    model = box([home], buffer_size=100).learn(330)
    buffer = model.replay_buffer
    steps, envs = np.repeat(np.arange(50), 2), np.tile(np.arange(2), 50)
    expected = buffer.answers.before[steps, envs], buffer.answers.after(steps, envs)
    model.add_source(away)
    model.add_source(home, name="again")
    model.remove_source("away")
    answers = model.replay_buffer.answers
    np.testing.assert_allclose(answers.before[steps, envs][:, 1:], expected[0], atol=1e-6)
    np.testing.assert_allclose(answers.after(steps, envs)[:, 1:], expected[1], atol=1e-6)
    np.testing.assert_array_equal(answers.before[steps, envs][:, :1], expected[0])
    np.testing.assert_array_equal(answers.after(steps, envs)[:, :1], expected[1])


def test_load_with_another_set_for_continuous_actions(tmp_path: Path) -> None:
    model = box({"home": home, "away": away}).learn(300)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    env = make_vec_env(ToyBox, 2, seed=0)
    loaded = ContinuousCAPS.load(tmp_path / "model", env=env, source_policies={"other": away, "home": home})
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert loaded.options.names == ["other", "home", "actor"]
    np.testing.assert_array_equal(
        loaded.replay_buffer.answers.before[:100, :, 1], model.replay_buffer.answers.before[:100, :, 0]
    )
    assert loaded.selector.rewards["home"].mean == model.selector.rewards["home"].mean
    last: Any = loaded.policy.termination_net[-1]
    saved: Any = model.policy.termination_net[-1]
    np.testing.assert_array_equal(last.weight[1:].detach(), saved.weight[[0, 2]].detach())
    loaded.learn(200, reset_num_timesteps=False)
    bare = ContinuousCAPS.load(tmp_path / "model", env=env, source_policies=[])
    bare.learn(100)
    assert bare.options.names == ["actor"]
