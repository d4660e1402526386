"""ContinuousCAPS: any source, the start as the best one, safety, seeds, files, and all that SAC can do."""

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_caps import as_source, each
from sb3_caps.caps.gate import ACTOR, BEST, OPTIONS, RANDOM
from sb3_caps.continuous import ContinuousCAPS
from sb3_caps.continuous.base import ActorSample
from sb3_caps.continuous.options import BoxOptionSet
from sb3_caps.continuous.start import take_over
from sb3_caps.files.export import export_source
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.sources import evaluate_sources
from tests.toy_box import REACH, ToyBox, away, home

OBSERVATIONS = np.random.default_rng(0).uniform(-1, 1, size=(50, 2)).astype(np.float32)
SMALL: dict[str, Any] = {"learning_starts": 20, "policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}


def make(*sources: Any, env: Any = None, **arguments: Any) -> ContinuousCAPS:
    policy = arguments.pop("policy", "MlpPolicy")
    return ContinuousCAPS(policy, env or ToyBox(), source_policies=sources or [home, away], **{**SMALL, **arguments})


def parameters(model: Any) -> list[th.Tensor]:
    return [each.detach().clone() for each in model.policy.parameters()]


def same(one: Any, other: Any) -> bool:
    return all(th.equal(a, b) for a, b in zip(parameters(one), parameters(other), strict=True))


def test_nobody_else_who_draws_changes_a_run() -> None:
    """Nor does the run change what others draw."""
    np.random.seed(0)
    expected = np.random.random(100)
    runs = []
    for seed in (1, 0):
        np.random.seed(seed)
        model = make()
        np.random.seed(seed)
        runs.append(model.learn(100))
    assert same(*runs)
    np.testing.assert_array_equal(np.random.random(100), expected)


# Sources


@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG, PPO, A2C])
def test_models_answer_as_they_predict(algorithm: Any, tmp_path: Path) -> None:
    trained = algorithm("MlpPolicy", ToyBox(), policy_kwargs={"net_arch": [8]}, seed=1, device="cpu")
    trained.save(tmp_path / "trained")
    env = ToyBox()
    options = BoxOptionSet([trained, tmp_path / "trained.zip"], env.observation_space, env.action_space)
    observations = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    found, _ = options.actions(observations, options.initial_states(), np.ones(5, dtype=bool))
    expected = trained.predict(observations, deterministic=True)[0]
    assert len(options._box_stacks) == 1
    for i in range(2):
        np.testing.assert_allclose(options.unscaled(found[:, i]), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["TQC", "CrossQ"])
def test_models_of_sb3_contrib_answer_as_they_predict(name: str) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    trained = getattr(contrib, name)("MlpPolicy", ToyBox(), policy_kwargs={"net_arch": [8]}, seed=1, device="cpu")
    env = ToyBox()
    options = BoxOptionSet([trained], env.observation_space, env.action_space)
    observations = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    found, _ = options.actions(observations, options.initial_states(), np.ones(5, dtype=bool))
    expected = trained.predict(observations, deterministic=True)[0]
    np.testing.assert_allclose(options.unscaled(found[:, 0]), expected, atol=1e-5)


def test_functions_maps_modules_and_objects_are_sources() -> None:
    class Object:
        def predict(self, observations: np.ndarray) -> tuple[np.ndarray, None]:
            return home(observations), None

    class Module(th.nn.Module):
        def forward(self, observations: th.Tensor) -> th.Tensor:
            return th.clip(-10 * observations, -REACH, REACH)

    mapped = as_source(lambda one: one[:, :1], action_map=lambda actions: home(np.repeat(actions, 2, axis=1)))
    single = each(lambda observation: home(observation))
    env = ToyBox()
    options = BoxOptionSet([Object(), Module(), single, mapped], env.observation_space, env.action_space)
    observations = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    found, _ = options.actions(observations, options.initial_states(), np.ones(3, dtype=bool))
    for i in range(3):
        np.testing.assert_allclose(options.unscaled(found[:, i]), home(observations), atol=1e-6)
    np.testing.assert_allclose(options.unscaled(found[:, 3]), home(observations[:, [0, 0]]), atol=1e-6)


def test_an_answer_outside_the_box_is_clipped_and_told_once() -> None:
    def far(observations: np.ndarray) -> np.ndarray:
        return np.full((len(observations), 2), 100.0)

    model = make(far, home)
    with pytest.warns(UserWarning, match="far.*outside.*100") as caught:
        model.learn(30)
    assert len([each for each in caught if "outside" in str(each.message)]) == 1
    assert model.replay_buffer.answers.before[:30, 0, 0].min() == 1.0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            lambda observations: np.zeros((len(observations), 3)),
            r"returned actions of shape \(2, 3\): expected \(2, 2\)",
        ),
        (lambda observations: np.full((len(observations), 2), np.nan), "expected finite numbers"),
        (lambda observations: "left", "expected"),
    ],
)
def test_what_is_no_action_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(source)


def test_other_actions_are_refused() -> None:
    discrete = DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=10)
    with pytest.raises(ValueError, match="acts in Discrete"):
        make(as_source(discrete, observation_map=lambda one: np.zeros((len(one), 4))))
    with pytest.raises(ValueError, match="expects observations of"):
        make(SAC("MlpPolicy", "Pendulum-v1", device="cpu", buffer_size=10))


def test_sources_are_evaluated_on_a_task() -> None:
    best, worst = evaluate_sources([home, away], ToyBox(), n_eval_episodes=2)
    assert best.mean > worst.mean


# Learning


def test_it_begins_as_the_best_source_whatever_that_is() -> None:
    model = make(away, home)
    model.learn(600, callback=lambda *_: model.selector.surveying)
    assert not model.selector.surveying
    assert model.selector.guide == Behaviour("home", is_source=True)
    observations = np.random.default_rng(0).uniform(-1, 1, size=(50, 2)).astype(np.float32)
    model.gate.controller = ACTOR
    actions, _ = model.predict(observations, deterministic=True)
    assert np.abs(actions - home(observations)).mean() < 0.8


def actions_of_the_actor(model: ContinuousCAPS) -> np.ndarray:
    model.gate.controller = ACTOR
    return model.predict(OBSERVATIONS, deterministic=True)[0]


@pytest.mark.parametrize(
    ("algorithm", "arguments", "takes"),
    [
        (SAC, {}, (True, True)),
        (SAC, {"use_sde": True}, (True, True)),
        (TD3, {}, (True, True)),
        # One critic, critics of quantiles, and values of states
        (DDPG, {}, (True, False)),
        (sb3_contrib.TQC, {}, (True, False)),
        (PPO, {}, (False, False)),
        # The same shape, another function
        (SAC, {"policy_kwargs": {"net_arch": [8], "activation_fn": th.nn.Tanh}}, (False, False)),
        (SAC, {"policy_kwargs": {"net_arch": [9]}}, (False, False)),
    ],
)
def test_an_actor_critic_of_the_same_layers_is_taken_over(
    algorithm: Any, arguments: dict[str, Any], takes: tuple[bool, bool]
) -> None:
    trained = algorithm("MlpPolicy", ToyBox(), **{"policy_kwargs": {"net_arch": [8]}, "device": "cpu", **arguments})
    model = make(away, trained, policy_kwargs={"net_arch": [8]}, use_sde=arguments.get("use_sde", False))
    before = parameters(model)
    source = model.options.sources[1]
    assert take_over(source.network, model.policy) == takes
    same_actions = np.allclose(actions_of_the_actor(model), trained.predict(OBSERVATIONS, deterministic=True)[0])
    assert same_actions == takes[0]
    if not takes[0]:
        assert all(th.equal(one, other) for one, other in zip(before, parameters(model), strict=True))
    for name in ("critic", "critic_target") if takes[1] else ():
        theirs, own = getattr(trained, name).state_dict(), getattr(model, name).state_dict()
        assert all(th.equal(theirs[key], own[key]) for key in own)
    # There is nothing to take over of a function
    assert take_over(model.options.sources[0].network, model.policy) == (False, False)


def test_a_model_of_ours_is_taken_over_as_it_acts() -> None:
    teacher = make(home, away).learn(200)
    model = make(teacher)
    for controller, actor in ((OPTIONS, teacher.actor), (BEST, teacher.policy.actor_best)):
        teacher.gate.controller = controller
        assert take_over(as_source(teacher).network, model.policy) == (True, True)
        for theirs, own in zip(actor.parameters(), model.actor.parameters(), strict=True):
            assert th.equal(theirs, own)
    # Its actor is not what acts
    teacher.gate.controller = Behaviour("home", is_source=True)
    assert take_over(as_source(teacher).network, model.policy) == (False, False)


@pytest.mark.parametrize("ent_coef", ["auto_0.2", 0.3])
def test_what_entropy_counts_for_is_taken_over(ent_coef: Any, tmp_path: Path) -> None:
    trained = SAC("MlpPolicy", ToyBox(), ent_coef=ent_coef, policy_kwargs={"net_arch": [8]}, device="cpu")
    trained.save(tmp_path / "trained")
    export_source(trained, tmp_path / "exported.npz")
    expected = float(str(ent_coef).removeprefix("auto_"))
    for source in (trained, tmp_path / "trained.zip", tmp_path / "exported.npz"):
        assert as_source(source).ent_coef == pytest.approx(expected)
        model = make(source, learning_rate=0.0)
        model.learn(200)
        assert model.log_ent_coef is not None
        assert model.log_ent_coef.exp().item() == pytest.approx(expected)
        # Nothing was learned: it is that source, and known as that
        assert np.allclose(actions_of_the_actor(model), trained.predict(OBSERVATIONS, deterministic=True)[0], atol=1e-6)


def test_networks_are_begun_with_however_little_they_are_paid() -> None:
    env = ToyBox()
    model = make(SAC("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, seed=7, device="cpu"), learning_rate=0.0)
    model.learn(200)
    trained = model.options.sources[0].policy
    assert trained is not None
    assert np.allclose(actions_of_the_actor(model), trained.predict(OBSERVATIONS, deterministic=True)[0], atol=1e-6)
    # There was nothing to compare with
    assert model.selector.of(RANDOM).n == 0
    assert not model.selector.surveying


def test_an_unknown_entropy_coefficient_is_small_beside_the_values() -> None:
    trained = TD3("MlpPolicy", ToyBox(), policy_kwargs={"net_arch": [8]}, device="cpu")
    model = make(trained, learning_rate=0.0)
    model.learn(200)
    assert model.log_ent_coef is not None
    assert model.log_ent_coef.item() < 0
    # The same once more, by more states than there were then
    model.log_ent_coef.data.fill_(0.0)
    model._lower_ent_coef()
    data = model.replay_buffer.everything()
    with th.no_grad():
        spread = th.cat(model.critic(data.observations, data.actions), dim=1).min(dim=1).values.std().item()
    assert model.log_ent_coef.exp().item() == pytest.approx(0.01 * spread, rel=0.3)


def test_only_a_clone_is_pulled() -> None:
    model = make(away, home)
    model.learn(600, callback=lambda *_: model.selector.surveying)
    assert model._is_cloned
    assert model.selector.lead == 1.0
    data = model.replay_buffer.sample(32)
    means, values = th.zeros(32, 2), th.arange(32.0)[:, None]
    pulled = model._reuse_loss(data, ActorSample(means, values))
    squares = data.source_actions[:, 1].square().sum(dim=1)
    assert float(pulled) == pytest.approx(float(5.0 * values.std() * squares.mean()), rel=1e-5)
    model._is_cloned = False
    assert model._reuse_loss(data, ActorSample(means, values)) == 0.0


def test_the_critic_learns_before_the_actor_moves() -> None:
    model = make(away, home)
    started: list[Any] = []

    class Watched(ContinuousCAPS):
        @property
        def _moves_actor(self) -> bool:
            started.append((super()._moves_actor, self._owed_steps))
            return super()._moves_actor

    model.__class__ = Watched
    model.learn(600)
    moved = [moves for moves, _ in started]
    n_first = moved.index(True)
    # As many steps as the survey put off, and none of the actor among them
    assert n_first == started[0][1] > 0
    assert all(moved[n_first:])


def test_a_useless_source_does_not_pull() -> None:
    model = make(away, away)
    model.learn(300)
    assert model.selector.guide is None
    assert model.selector.lead == 0.0
    assert not model._is_cloned


def test_it_is_never_below_the_best_source() -> None:
    model = make(home, away, learning_rate=0.0)
    model.learn(1000)
    env = Monitor(ToyBox())
    env.reset(seed=5)
    own, _ = evaluate_policy(model, env, 20)
    assert float(np.mean(own)) > -5
    assert model.gate.controller != Behaviour("away", is_source=True)
    assert "predict acts by" in str(model.reuse_summary())
    assert model.reuse_summary().acts_by == model.gate.controller.name


def test_without_safety_it_acts_by_what_is_learned() -> None:
    model = make(safe=False)
    assert model.gate.controller == OPTIONS
    model.learn(300)
    assert model.gate.controller == OPTIONS


def test_the_same_seed_learns_the_same() -> None:
    def learned() -> ContinuousCAPS:
        return make(env=make_vec_env(ToyBox, n_envs=2)).learn(300)

    one, other = learned(), learned()
    assert same(one, other)
    assert one.gate == other.gate
    assert not same(one, make(env=make_vec_env(ToyBox, n_envs=2), seed=1).learn(300))


@pytest.mark.parametrize("controller", [ACTOR, OPTIONS, BEST, Behaviour("home", is_source=True)])
@pytest.mark.parametrize("execution", ["interrupting", "call-and-return"])
def test_a_loaded_model_acts_as_it_did(controller: Behaviour, execution: str, tmp_path: Path) -> None:
    model = make(policy_kwargs={"net_arch": [8], "execution": execution}).learn(200)
    model.gate.controller = controller
    model.save(tmp_path / "model")
    loaded = ContinuousCAPS.load(tmp_path / "model", device="cpu")
    assert loaded.gate.controller == controller
    assert loaded.source_names == ["home", "away"]
    observations = np.random.default_rng(0).uniform(-1, 1, size=(20, 2)).astype(np.float32)
    expected, state = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(loaded.predict(observations, deterministic=True)[0], expected)
    again, _ = model.predict(observations, state, np.zeros(20, dtype=bool), deterministic=True)
    np.testing.assert_allclose(again, expected)
    single, _ = model.predict(observations[0], deterministic=True)
    np.testing.assert_allclose(single, expected[0], atol=1e-6)
    # And it is a source itself
    source = as_source(tmp_path / "model.zip")
    actions, _ = source.actions(observations, None, np.ones(20, dtype=bool))
    np.testing.assert_allclose(actions, expected)


def test_a_saved_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def env() -> DummyVecEnv:
        return DummyVecEnv([ToyBox])

    def two_runs(between: Any) -> ContinuousCAPS:
        model = make(env=env()).learn(200)
        model = between(model)
        model.set_random_seed(3)
        assert model.env is not None
        model.env.seed(3)
        model._last_obs = None
        return model.learn(100, reset_num_timesteps=False)

    def through_files(model: ContinuousCAPS) -> ContinuousCAPS:
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        loaded = ContinuousCAPS.load(tmp_path / "model", env=env(), device="cpu")
        loaded.load_replay_buffer(tmp_path / "buffer")
        return loaded

    one, other = two_runs(lambda model: model), two_runs(through_files)
    assert same(one, other)
    assert one.selector.rewards.keys() == other.selector.rewards.keys()


def test_sources_that_were_not_saved_are_given_again(tmp_path: Path) -> None:
    model = make().learn(100)
    model.save(tmp_path / "model", exclude=["options"])
    with pytest.raises(ValueError, match="were not saved with the model"):
        ContinuousCAPS.load(tmp_path / "model")
    loaded = ContinuousCAPS.load(tmp_path / "model", source_policies=[home, away], device="cpu")
    assert loaded.source_names == ["home", "away"]


def test_what_was_learned_stays_when_it_goes_on_with_other_sources(tmp_path: Path) -> None:
    model = make(home, away).learn(300)
    model.save(tmp_path / "model")
    loaded = ContinuousCAPS.load(
        tmp_path / "model", env=ToyBox(), source_policies={"north": away, "south": home}, learning_rate=0.0
    )
    assert loaded.gate.controller in (OPTIONS, BEST)
    assert loaded.selector.surveying
    before = [each.clone() for each in loaded.actor.parameters()]
    loaded.learn(600)
    assert not loaded.selector.surveying
    assert all(th.equal(one, other) for one, other in zip(before, loaded.actor.parameters(), strict=True))


# As in SAC


def test_without_sources_it_learns_as_sac_does_from_a_buffer_smaller_than_a_batch(tmp_path: Path) -> None:
    def learned(algorithm: Any) -> Any:
        small: dict[str, Any] = {"learning_starts": 20, "policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
        model = algorithm("MlpPolicy", ToyBox(), buffer_size=60, batch_size=64, **small)
        return model.learn(100)

    ours, sac = learned(ContinuousCAPS), learned(SAC)
    expected = sac.policy.state_dict()
    assert all(th.equal(value, expected[key]) for key, value in ours.policy.state_dict().items())
    # Steps of others can be added, and TensorBoard says who acted
    seen = np.zeros((1, 2), dtype=np.float32)
    ours.replay_buffer.add(seen, seen, seen, np.zeros(1), np.zeros(1, dtype=bool), [{}])
    ours.tensorboard_log = str(tmp_path)
    ours.learn(50, reset_num_timesteps=False)
    assert {each.name for each in ours._tracker.behaviours} == {"exploring"}
    with pytest.raises(ValueError, match="Pass source_actions"):
        make().replay_buffer.add(seen, seen, seen, np.zeros(1), np.zeros(1, dtype=bool), [{}])


@pytest.mark.parametrize(
    "arguments",
    [
        {"env": "four"},
        {"train_freq": (1, "episode"), "gradient_steps": -1},
        {"train_freq": 3, "gradient_steps": 2},
        {"action_noise": NormalActionNoise(np.zeros(2), 0.1 * np.ones(2))},
        {"env": "four", "action_noise": NormalActionNoise(np.zeros(2), 0.1 * np.ones(2))},
        {"use_sde": True, "sde_sample_freq": 2, "use_sde_at_warmup": True},
        {"ent_coef": 0.1},
        {"ent_coef": "auto_0.5", "target_entropy": -1.0},
        {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}},
        {"env": "normalized"},
        {"env": "dict", "policy": "MultiInputPolicy"},
        {"env": "image", "policy": "CnnPolicy", "policy_kwargs": {"share_features_extractor": True}},
        {"env": "falls"},
        {"learning_rate": lambda remaining: 1e-3 * remaining},
        {"target_update_interval": 2},
    ],
    ids=lambda arguments: ", ".join(arguments),
)
def test_it_learns_as_sac_does(arguments: dict[str, Any], tmp_path: Path) -> None:
    envs: dict[str, Any] = {
        "four": lambda: make_vec_env(ToyBox, n_envs=4),
        "normalized": lambda: VecNormalize(make_vec_env(ToyBox, n_envs=2)),
        "dict": lambda: ToyBox("dict"),
        "image": lambda: ToyBox("image"),
        "falls": lambda: ToyBox(falls=True),
    }
    kind = arguments.get("env", "vector")

    def zero(observations: Any) -> np.ndarray:
        if isinstance(observations, dict):
            observations = observations["where"]
        return np.zeros((len(observations), 2))

    def straight(observations: Any) -> np.ndarray:
        if isinstance(observations, dict):
            observations = observations["where"]
        if observations.ndim > 2:
            # As the environment emits them
            assert observations.shape[1:] == (36, 36, 1)
            return np.repeat(-(observations[:, 0, 0].astype(np.float64) - 127) / 60, 2, axis=1)
        return home(observations)

    given = {"n_steps": 1, "batch_size": 16, **arguments, "env": envs.get(kind, ToyBox)()}
    steps = 90 if kind == "image" else 240
    buffer_size = 1000
    model = make(zero, straight, buffer_size=buffer_size, **given).learn(steps)
    assert model._n_updates > 0
    assert not model.selector.surveying
    assert np.isfinite([each.abs().max().item() for each in parameters(model)]).all()
    model.save(tmp_path / "model")
    ContinuousCAPS.load(tmp_path / "model", env=envs.get(kind, ToyBox)(), device="cpu").learn(30)


def test_sources_see_what_the_environment_emits() -> None:
    seen: list[np.ndarray] = []

    def watching(observations: np.ndarray) -> np.ndarray:
        seen.append(observations)
        return home(observations)

    env = VecNormalize(make_vec_env(lambda: ToyBox(), n_envs=2))
    model = make(watching, env=env)
    seen.clear()
    model.learn(100)
    buffer = model.replay_buffer
    kept = {row.tobytes() for row in buffer.observations.reshape(-1, 2).astype(np.float32)}
    assert sum(row.tobytes() in kept for rows in seen for row in rows.astype(np.float32)) > 90


def test_the_answers_that_are_kept_are_those_of_their_observations() -> None:
    model = make(env=make_vec_env(lambda: ToyBox(falls=True), n_envs=3)).learn(300)
    model.learn(60)
    data = model.replay_buffer.everything()
    for observations, answers in (
        (data.observations, data.source_actions),
        (data.next_observations, data.next_source_actions),
    ):
        assert isinstance(observations, th.Tensor)
        expected = home(observations.numpy()) / REACH
        np.testing.assert_allclose(answers[:, 0], expected, atol=1e-6)
        np.testing.assert_allclose(answers[:, 1], -expected, atol=1e-6)


def test_a_callback_that_ends_the_run_loses_nothing() -> None:
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps % 33 != 0

    model = make().learn(100, callback=Stop())
    assert model.num_timesteps == 33
    assert model.replay_buffer.pos == 33
    model.learn(100, reset_num_timesteps=False)
    assert model.replay_buffer.pos == 133


def test_what_is_not_for_it_is_refused() -> None:
    env: Any = gym.make("CartPole-v1")
    with pytest.raises(AssertionError, match="only supports"):
        ContinuousCAPS("MlpPolicy", env)
    with pytest.raises(ValueError, match=r"HerReplayBuffer \(HER\) is not supported"):
        make(replay_buffer_class=HerReplayBuffer)
    with pytest.raises(ValueError, match="n_steps must be 1, not 3"):
        make(n_steps=3)
    with pytest.raises(ValueError, match="pull must be a number"):
        make(pull=-1.0)
    with pytest.raises(ValueError, match="selection_kwargs must be a dict with some of"):
        make(selection_kwargs={"fever": 3})
    with pytest.raises(ValueError, match="replay_buffer_class must be a SourceReplayBuffer"):
        make(replay_buffer_class=SAC)
    with pytest.raises(ValueError, match="learning_rate must be a number"):
        make(learning_rate=float("nan"))


def test_the_file_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    SAC("MlpPolicy", ToyBox(), **SMALL).save(tmp_path / "sac")
    with pytest.raises(ValueError, match="this is a SAC model"):
        ContinuousCAPS.load(tmp_path / "sac")
    make().save(tmp_path / "ours")
    with pytest.raises(TypeError, match="has no argument sources"):
        ContinuousCAPS.load(tmp_path / "ours", sources=[home])


def test_rewards_that_are_not_finite_are_refused() -> None:
    class Broken(ToyBox):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, _, *rest = super().step(action)
            return observation, float("nan"), *rest

    with pytest.raises(ValueError, match="The reward of environment 0 is nan"):
        make(env=Broken()).learn(10)


def test_no_warnings_in_a_plain_run() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().learn(100)


def test_terminations_are_probabilities() -> None:
    model = make().learn(300)
    beta = model.policy.values_and_terminations(np.zeros((4, 2), dtype=np.float32))[1]
    assert beta.shape == (4, 3)
    assert ((beta >= 0) & (beta <= 1)).all()


def test_spaces_of_any_shape() -> None:
    class Square(ToyBox):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(np.array([[-2.0], [-1.0]], np.float32), np.array([[2.0], [3.0]], np.float32))

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action), action
            where = self.action_space
            self.action_space = spaces.Box(-4, 4, (2,))
            try:
                return super().step(action[:, 0])
            finally:
                self.action_space = where

    model = make(lambda observations: np.full((len(observations), 2, 1), 2.0), env=Square()).learn(100)
    assert model.replay_buffer.answers.before[0, 0, 0].tolist() == [1.0, 0.5]
