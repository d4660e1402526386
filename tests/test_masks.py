"""Action masks: what the environments do not allow is neither done nor counted on."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as maskable_evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnvWrapper, VecNormalize

from sb3_caps import CAPS, OPSTL, PRQL, JumpStart, QDagger, with_masks
from sb3_caps.caps.exploration import epsilon_greedy
from sb3_caps.caps.gate import ACTOR, BEST, EXPLORING, MIXING, OPTIONS, RANDOM, SAMPLED_ACTOR, Gate
from sb3_caps.caps.losses import option_targets, termination_loss
from sb3_caps.caps.networks import ResidualActor
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.reuse.callbacks import ReuseEvalCallback, run_episode
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.reuse.evaluation import discounted_returns
from sb3_caps.reuse.evidence import Evidence
from sb3_caps.reuse.selectors import RANDOM as RANDOM_POLICY
from sb3_caps.sources import as_source, evaluate_sources
from sb3_caps.sources.masks import action_masks_of, has_action_masks, random_actions
from sb3_caps.studies.reuse.references import Alone
from sb3_caps.studies.reuse.worlds import BatchedVecEnv
from sb3_caps.studies.reuse.worlds.railway import Railway
from tests.paper import paper
from tests.test_losses import sequences
from tests.toy_world import LENGTH, Corridor, MaskableCorridor, go_right, masks_of

N_ACTIONS = 9
RELATIVES = [PRQL, OPSTL, JumpStart, QDagger]
SMALL: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}, "buffer_size": 2000, "learning_starts": 50, "seed": 0}


def allowed_at(places: np.ndarray, times: np.ndarray | int) -> np.ndarray:
    """Another few of the actions in every place, and every second step."""
    scores = 7 * np.arange(N_ACTIONS) + 5 * np.asarray(places)[..., None] + 3 * (np.asarray(times)[..., None] % 2)
    return scores % 4 == 0


class Strict(gym.Env[Any, Any]):
    """
    A ring of places on which action k goes k + 1 places on. What is not allowed is an error, and not a wasted step.

    :param tells: whether a truncated episode tells which actions were allowed where it ended
    """

    def __init__(self, tells: bool = False) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (LENGTH + 2,), np.float32)
        self.action_space = spaces.Discrete(N_ACTIONS)
        self.place, self.time, self.tells = 0, 0, tells

    def action_masks(self) -> np.ndarray:
        return allowed_at(np.array(self.place), self.time)

    def observe(self) -> np.ndarray:
        return np.append(np.eye(LENGTH)[self.place], np.eye(2)[self.time % 2]).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.time = int(self.np_random.integers(1, LENGTH)), 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_masks()[action], f"action {action} is not allowed in place {self.place}"
        self.place, self.time = (self.place + int(action) + 1) % LENGTH, self.time + 1
        done = self.place == 0
        infos = {"action_mask": self.action_masks().astype(np.int8)} if self.tells else {}
        return self.observe(), float(done), done, not done and self.time >= 12, infos


def always(action: int) -> Callable[[np.ndarray], np.ndarray]:
    def source(observations: np.ndarray) -> np.ndarray:
        return np.full(len(observations), action)

    return source


def strict_sources() -> list[Any]:
    """All of them often do what is not allowed."""
    return [always(0), always(4)]


# --- nothing is done that is not allowed ---


@pytest.mark.parametrize(
    ("steps", "arguments"),
    [
        (100_000, {"actor_kwargs": {"interval": 20_000, "n_epochs": 1}}),
        (5_000, {"source_policies": None}),
        (5_000, paper()),
        (5_000, {"safe": False, "termination": 0.3}),
    ],
)
def test_nothing_is_done_that_is_not_allowed(steps: int, arguments: dict[str, Any]) -> None:
    env = make_vec_env(Strict, 8, seed=0)
    given = SMALL | {"source_policies": strict_sources()} | arguments | {"train_freq": 64}
    model = CAPS("MlpPolicy", env, **given).learn(steps)
    assert model.num_timesteps >= steps
    buffer = model.replay_buffer
    # What the buffer keeps of s says the same
    data = buffer.get_sequences(np.arange(buffer.size()), np.zeros(buffer.size(), dtype=np.int64))
    assert data.action_masks is not None
    kept = data.action_masks[: data.actions.numel()].gather(1, data.actions.flatten()[:, None])
    assert kept[data.mask.flatten()].all()


def test_every_behaviour_knows_the_masks() -> None:
    """Each acts alone, whoever the selector would choose."""
    env = make_vec_env(Strict, 4, seed=0)
    model = CAPS("MlpPolicy", env, source_policies=strict_sources(), **SMALL).learn(600)
    for behaviour in [RANDOM, EXPLORING, MIXING, OPTIONS, ACTOR, SAMPLED_ACTOR, BEST, Behaviour("source", True)]:
        name = model.options.names[0] if behaviour.is_source else behaviour.name
        chosen = Behaviour(name, behaviour.is_source)
        model.selector.select = lambda env, chosen=chosen: chosen  # type: ignore[method-assign, misc]
        model.learn(400, reset_num_timesteps=False)
        assert {each.name for each in model._cast} == {name}


@pytest.mark.parametrize("algorithm", RELATIVES)
@pytest.mark.parametrize("sources", [True, False])
def test_relatives_do_nothing_that_is_not_allowed(algorithm: type[Any], sources: bool) -> None:
    env = make_vec_env(Strict, 2, seed=0)
    policies = strict_sources() if sources else None
    model = algorithm("MlpPolicy", env, source_policies=policies, exploration_initial_eps=0.5, **SMALL).learn(3000)
    places = np.arange(1, LENGTH)
    observations = np.concatenate([np.eye(LENGTH)[places], np.eye(2)[places % 2]], axis=1)
    masks = allowed_at(places, places)
    for deterministic in (True, False):
        actions, _ = model.predict(observations, deterministic=deterministic, action_masks=masks)
        assert masks[np.arange(len(places)), actions].all()
    single, _ = model.predict(observations[0], deterministic=True, action_masks=masks[0])
    assert masks[0, single]
    evaluate_policy(with_masks(model, env), env, 5)


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_masks_by_the_convention_of_sb3_contrib(vec_env_cls: type[Any]) -> None:
    def masked() -> gym.Env:
        return ActionMasker(Corridor(), lambda env: masks_of(np.array([env.unwrapped.position]))[0])  # type: ignore[attr-defined]

    env = VecNormalize(make_vec_env(masked, 2, seed=0, vec_env_cls=vec_env_cls))
    try:
        assert has_action_masks(env)
        assert is_masking_supported(env)
        model = CAPS("MlpPolicy", env, source_policies=[go_right], **SMALL).learn(200)
        np.testing.assert_array_equal(action_masks_of(env), get_action_masks(env))
        # Standing still is allowed nowhere
        assert set(model.replay_buffer.actions[: model.replay_buffer.pos].flatten().tolist()) == {0, 1}
    finally:
        env.close()
    assert not has_action_masks(Corridor())
    assert not is_masking_supported(Corridor())
    np.testing.assert_array_equal(action_masks_of(Strict()), [get_action_masks(Strict())])


def test_a_mask_that_allows_nothing_or_has_another_shape_is_refused() -> None:
    class DeadEnd(Strict):
        def action_masks(self) -> np.ndarray:
            return super().action_masks() & (self.place != 5)

    env = make_vec_env(DeadEnd, 3, seed=0)
    model = CAPS("MlpPolicy", env, **SMALL)
    with pytest.raises(ValueError, match=r"The action mask of environment \d allows nothing: allow an action in every"):
        model.learn(1000)
    model = CAPS("MlpPolicy", Strict(), **SMALL)
    observation = Strict().reset(seed=0)[0]
    with pytest.raises(ValueError, match="environment 0 allows nothing"):
        model.predict(observation, action_masks=np.zeros(N_ACTIONS))
    with pytest.raises(ValueError, match=r"of shape \(1, 3\): expected those of 1 environments and 9 actions"):
        model.predict(observation, action_masks=np.ones(3))


# --- nothing is counted on that is not allowed ---


def test_targets_by_hand() -> None:
    """Option 1 has the highest value in s' and is not allowed there: it ends, and the best of the others counts."""
    data = sequences(np.array([[1.0]]), np.array([[False]]), np.ones((1, 1, 3), bool), np.array([[True]]))
    values, beta = th.tensor([[[2.0, 9.0, 3.0]]]), th.tensor([[[0.5, 0.0, 0.25]]])
    allowed = th.tensor([[[True, False, True]]])
    policy = CAPS("MlpPolicy", Corridor(), seed=0).policy
    greedy = policy.greedy_options(values[0], allowed[0])[None]
    assert greedy.tolist() == [[2]]
    targets = option_targets(data, 0.5, greedy, values, beta, allowed)
    # U(s', 0) = 0.5 * 2 + 0.5 * 3 = 2.5, U(s', 1) = 3 though its β is 0, U(s', 2) = 3
    assert targets.flatten().tolist() == [1 + 0.5 * 2.5, 1 + 0.5 * 3, 1 + 0.5 * 3]
    values[..., 1] = 1e30
    assert option_targets(data, 0.5, greedy, values, beta, allowed).flatten().tolist() == targets.flatten().tolist()


def test_targets_along_sequences_by_hand() -> None:
    """In s' option 0 agrees with the action taken, so it goes on by the second step; option 1 is not allowed there."""
    data = sequences(
        rewards=np.array([[0.0], [4.0]]),
        dones=np.array([[False], [True]]),
        agreements=np.array([[[True, True]], [[True, False]]]),
        mask=np.array([[True], [True]]),
    )
    allowed = th.tensor([[[True, False]], [[True, True]]])
    values, beta = th.tensor([[[1.0, 8.0]], [[7.0, 7.0]]]), th.zeros(2, 1, 2)
    targets = option_targets(data, 0.5, th.tensor([[0], [0]]), values, beta, allowed)
    # The second step ends and is worth 4 for both. The first: U(s', 0) = 4, and option 1 ends, into the same 4
    assert targets[:, 0].flatten().tolist() == [2.0, 2.0, 4.0, 4.0]


def test_terminations_by_hand() -> None:
    """Action 1 is the best one and not allowed: of the others action 2 is best, and nothing is learned of action 1."""
    values = th.tensor([[[6.0, 1.0, 9.0, 2.0]]])
    logits = th.zeros(1, 1, 4, requires_grad=True)
    # The only source does what is not allowed, so it has no action
    source, nobody, mask = th.tensor([[[-1]]]), th.zeros(4, dtype=th.bool), th.tensor([[True]])
    termination_loss(logits, values, source, nobody, mask, th.tensor([[[True, False, True]]])).backward()
    assert logits.grad is not None
    # β of action 0 goes up, that of action 2 down
    assert logits.grad.flatten().tolist() == [0.0, -0.5, 0.0, 0.5]


def test_draws_by_hand() -> None:
    masks = np.array([[False, True, False, True], [True, False, False, False]])
    rng = np.random.default_rng(0)
    drawn = np.array([random_actions(2, 4, rng, masks) for _ in range(2000)])
    assert (drawn[:, 1] == 0).all()
    assert set(drawn[:, 0]) == {1, 3}
    assert np.mean(drawn[:, 0] == 1) == pytest.approx(0.5, abs=0.05)
    chosen = np.array([epsilon_greedy(np.zeros((2, 4)), 0.5, rng, np.array([3, 0]), masks) for _ in range(2000)])
    assert np.mean(chosen[:, 0] == 3) == pytest.approx(0.75, abs=0.05)
    # Without masks the draws are those that there always were
    first, second = np.random.default_rng(1), np.random.default_rng(1)
    assert random_actions(5, 4, first).tolist() == second.integers(4, size=5).tolist()


def test_actor_by_hand() -> None:
    """Three actions, the second not allowed: a source votes for the first with a half, the rest is spread evenly."""
    actor = ResidualActor(2, 1, 3, {"pi": [4], "vf": [4], "activation_fn": "Tanh"})
    actor.start_from(np.array([0.5]))
    masks = th.tensor([[True, False, True]])
    _, log_probs = actor(th.zeros(1, 2), th.tensor([[0]]), masks)
    # 1/2 + 1/6 and 1/6, renormalised
    assert log_probs.exp().flatten().tolist() == pytest.approx([0.8, 0.0, 0.2])
    log_probs[0, 2].backward()
    assert all(each.grad is None or each.grad.isfinite().all() for each in actor.parameters())
    # A source that does what is not allowed has no vote
    assert actor(th.zeros(1, 2), th.tensor([[-1]]), masks)[1].exp().flatten().tolist() == pytest.approx([0.5, 0.0, 0.5])


def test_the_actor_is_the_same_in_numpy() -> None:
    model = CAPS("MlpPolicy", make_vec_env(Strict, 4, seed=0), source_policies=strict_sources(), **SMALL)
    actor, policy = model.policy.actor, model.policy
    actor.start_from(np.array([0.3, 0.4]))
    with th.no_grad():
        for parameter in actor.policy_net.parameters():
            parameter.add_(th.randn_like(parameter))
    places = np.arange(1, LENGTH)
    observations = np.concatenate([np.eye(LENGTH)[places], np.eye(2)[places % 2]], axis=1).astype(np.float32)
    masks = allowed_at(places, places)
    actions, _ = model.options.actions(observations, (None, None), np.ones(len(places), dtype=bool), masks)
    assert (actions[:, :2] < 0).any()
    np.testing.assert_array_equal(actions[:, 2:] >= 0, masks)
    acting = policy.acting()
    assert acting.preferences is not None
    found = acting.action_probabilities(observations, actions[:, :2], masks)
    assert (found[~masks] == 0).all()
    acting.preferences = None
    np.testing.assert_allclose(found, acting.action_probabilities(observations, actions[:, :2], masks), atol=1e-6)


def shifted(model: CAPS, forbidden: float) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
    """The targets, the loss of β and its gradient, with values of what is never allowed moved so far."""
    networks = [model.q_net, model.q_net_target]
    for network in networks:
        last: Any = network.q_net[-1]
        with th.no_grad():
            last.bias[-1] += forbidden
    model.replay_buffer.rng = np.random.default_rng(0)
    data = model._sample(64)
    assert data.action_masks is not None
    estimates, targets = model._estimates_and_targets(data)
    loss = model._termination_loss(data, estimates)
    assert isinstance(loss, th.Tensor)
    without = model._estimates_and_targets(data._replace(action_masks=None))[1]
    for network in networks:
        last = network.q_net[-1]
        with th.no_grad():
            last.bias[-1] -= forbidden
    return targets[data.learned].detach(), loss.detach(), without[data.learned].detach()


class Telling(MaskableCorridor):
    """What is allowed where an episode was truncated is told, so that standing still never is."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *found, infos = super().step(action)
        return *found, infos | {"action_mask": self.action_masks()}


@pytest.mark.parametrize("sequence_length", [1, 8])
def test_values_of_what_is_not_allowed_reach_no_target(sequence_length: int) -> None:
    env = make_vec_env(Telling, 2, seed=0)
    model = CAPS("MlpPolicy", env, source_policies=[go_right], sequence_length=sequence_length, **SMALL).learn(600)
    assert model.replay_buffer.timeouts.any()
    targets, loss, without = shifted(model, 0.0)
    moved_targets, moved_loss, moved_without = shifted(model, 1000.0)
    th.testing.assert_close(moved_targets, targets)
    th.testing.assert_close(moved_loss, loss)
    # Masks are what keeps them out
    assert (moved_without - without).max() > 100


def test_targets_of_the_relatives_by_hand() -> None:
    """Action 1 has the highest value in s' and is not allowed there: the best of the others counts."""
    env = make_vec_env(MaskableCorridor, 1, seed=0)
    model = PRQL("MlpPolicy", env, gamma=0.5, **SMALL)
    assert isinstance(model.replay_buffer, OptionReplayBuffer)
    last: Any = model.q_net_target.q_net[-1]
    with th.no_grad():
        last.weight.zero_()
        last.bias.copy_(th.tensor([2.0, 9.0, 3.0]))
    here, masks = np.eye(LENGTH, dtype=np.float32)[:1], np.ones((1, 3), dtype=bool)
    for done, next_masks in ((False, [[True, False, True]]), (False, [[True, False, False]]), (True, [[True] * 3])):
        add = partial(model.replay_buffer.add, action_masks=masks, next_action_masks=np.array(next_masks))
        add(here, here, np.array([2]), np.ones(1), np.array([done]), [{}])
    data, before, after = model._sample(100)
    assert before is not None
    assert before.all()
    assert after is not None
    targets = model._targets(data, after)[:, 0].tolist()
    found = {(tuple(mask), target) for mask, target in zip(after.tolist(), targets, strict=True)}
    # 1 + 0.5 * 3, 1 + 0.5 * 2, and 1 at the end
    assert found == {((True, False, True), 2.5), ((True, False, False), 2.0), ((True, True, True), 1.0)}
    assert {tuple(each) for each in data.actions.tolist()} == {(2,)}


def let_teach(model: QDagger) -> None:
    """Let a source be better by 1 than a random policy."""
    selector = model.selector
    selector.guide = selector.sources[0]
    for behaviour, worth in ((selector.guide, 1.0), (RANDOM_POLICY, 0.0)):
        selector.evidence[behaviour] = Evidence()
        selector.evidence[behaviour].add(worth)


def test_distillation_by_hand() -> None:
    """Of two actions the first is allowed alone: nothing to learn. And nothing from a teacher that is not allowed."""
    model = QDagger("MlpPolicy", Corridor(), source_policies=[go_right], temperature=1.0, **SMALL)
    let_teach(model)
    assert model.value_temperature == 1.0
    q_values = th.tensor([[0.0, np.log(3.0), 50.0], [4.0, 5.0, 6.0]], requires_grad=True)
    masks = th.tensor([[True, True, False], [True, False, True]])
    # The teacher's action is 1: 3/4 of what is allowed in the first state, and not allowed in the second
    loss = model.distillation_loss(q_values, th.tensor([1, 1]), masks)
    assert loss.item() == pytest.approx(-np.log(0.75) / 2)
    loss.backward()
    assert q_values.grad is not None
    np.testing.assert_allclose(q_values.grad, [[0.125, -0.125, 0.0], [0.0, 0.0, 0.0]], atol=1e-6)


@pytest.mark.parametrize("algorithm", RELATIVES)
@pytest.mark.parametrize("sources", [True, False])
def test_values_of_what_is_not_allowed_teach_the_relatives_nothing(algorithm: type[Any], sources: bool) -> None:
    env = make_vec_env(Telling, 2, seed=0)
    policies = [go_right] if sources else None
    model = algorithm("MlpPolicy", env, source_policies=policies, **SMALL).learn(600)
    if algorithm is QDagger and sources:
        let_teach(model)
        assert model.distillation_weight == 1.0
    data, masks, next_masks = model._sample(128)
    assert masks.gather(1, data.actions).all()
    found = []
    last: Any = model.q_net.q_net[-1], model.q_net_target.q_net[-1]
    for shift in (0.0, 1000.0):
        with th.no_grad():
            for layer in last:
                # To stand still is allowed nowhere
                layer.bias[-1] += shift
        q_values = model.q_net(data.observations)
        guided = th.as_tensor(model._guide_loss(data, q_values, masks)).detach()
        found.append((model._targets(data, next_masks), guided, model._targets(data, None)))
    (targets, guided, without), (moved_targets, moved_guided, moved_without) = found
    th.testing.assert_close(moved_targets, targets)
    th.testing.assert_close(moved_guided, guided)
    # Masks are what keeps them out
    assert (moved_without - without).max() > 100


def test_relatives_refuse_buffers_that_keep_no_masks(tmp_path: Path) -> None:
    env = make_vec_env(MaskableCorridor, 1, seed=0)
    for arguments in ({"n_steps": 3}, {"replay_buffer_class": ReplayBuffer}):
        with pytest.raises(ValueError, match="pass n_steps=1 and replay_buffer_class=None, not"):
            PRQL("MlpPolicy", env, **arguments, **SMALL)
    unmasked = PRQL("MlpPolicy", Corridor(), **SMALL)
    unmasked.set_env(env)
    with pytest.raises(ValueError, match="make a new model, or load this one with env and replay_buffer_class=None"):
        unmasked.learn(10)
    unmasked.save(tmp_path / "model")
    PRQL.load(tmp_path / "model", env=env, replay_buffer_class=None).learn(100)


@pytest.mark.parametrize("algorithm", RELATIVES)
def test_relatives_go_on_with_the_masks_that_they_kept(algorithm: type[Any], tmp_path: Path) -> None:
    env = make_vec_env(Strict, 2, seed=0)
    model = algorithm("MlpPolicy", env, source_policies=strict_sources(), **SMALL).learn(320)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = algorithm.load(tmp_path / "model", env=make_vec_env(Strict, 2, seed=0))
    loaded.load_replay_buffer(tmp_path / "buffer")
    np.testing.assert_array_equal(loaded.replay_buffer.forbidden, model.replay_buffer.forbidden)
    assert loaded.learn(320, reset_num_timesteps=False).num_timesteps == 640


def test_nothing_is_learned_online_from_what_is_not_allowed() -> None:
    env = make_vec_env(Telling, 2, seed=0)
    arguments = SMALL | paper(learning_rate=1e-3, termination_kwargs={"learning_rate": 0.1})
    model = CAPS("MlpPolicy", env, source_policies=[go_right], **arguments).learn(100)
    found = []
    last: Any = model.q_net.q_net[-1]
    for value in (0.0, 1000.0):
        with th.no_grad():
            last.bias[-1] += value
        before = [each.clone() for each in model.q_net.termination_net.parameters()]
        model._learn_terminations()
        parameters = list(model.q_net.termination_net.parameters())
        found.append([(after - earlier).detach() for after, earlier in zip(parameters, before, strict=True)])
        with th.no_grad():
            for parameter, earlier in zip(parameters, before, strict=True):
                parameter.copy_(earlier)
    assert any(each.abs().max() > 0 for each in found[0])
    for plain, moved in zip(*found, strict=True):
        th.testing.assert_close(plain, moved)


# --- what is kept ---


@pytest.mark.parametrize("tells", [False, True])
def test_the_buffer_keeps_masks_as_bits(tells: bool) -> None:
    env = make_vec_env(Strict, 2, seed=0, env_kwargs={"tells": tells})
    model = CAPS("MlpPolicy", env, source_policies=strict_sources(), sequence_length=3, **SMALL).learn(900)
    buffer = model.replay_buffer
    # Nine actions in two bytes
    assert buffer.forbidden is not None
    assert (buffer.forbidden.shape, buffer.forbidden.dtype) == ((2, 1000, 2, 2), np.uint8)
    starts, envs = np.arange(buffer.size()), np.ones(buffer.size(), dtype=np.int64)
    data = buffer.get_sequences(starts, envs)
    masks = data.action_masks.reshape(4, -1, N_ACTIONS).numpy()  # type: ignore[union-attr]
    observations: Any = data.observations
    seen = observations.reshape(4, len(starts), -1).numpy()
    expected = allowed_at(seen[..., :LENGTH].argmax(-1), seen[..., LENGTH:].argmax(-1))
    lengths = data.mask.sum(dim=0).numpy()
    ended, timeouts = buffer.dones[: buffer.pos, 1], buffer.timeouts[: buffer.pos, 1]
    assert timeouts.any()
    for i, length in enumerate(lengths):
        np.testing.assert_array_equal(masks[:length, i], expected[:length, i])
        last = i + length - 1
        if timeouts[last] and not tells:
            assert masks[length, i].all()
        elif timeouts[last] or not ended[last]:
            np.testing.assert_array_equal(masks[length, i], expected[length, i])
    latest = buffer.latest(50)
    assert latest.action_masks is not None
    assert latest.action_masks.gather(1, latest.actions[:, None]).all()


def test_without_masks_nothing_is_kept_or_asked_for() -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=[go_right], **SMALL).learn(100)
    assert model.replay_buffer.forbidden is None
    assert model._last_action_masks is None
    assert model.replay_buffer.sample(8).action_masks is None
    assert model.replay_buffer.latest(8).action_masks is None
    policy = model.policy
    assert with_masks(model, Corridor()) is model
    assert with_masks(policy, Corridor()) is policy


def test_steps_without_masks_beside_those_with() -> None:
    """As after `extend` by someone else's steps: there all is allowed."""
    space, actions = spaces.Box(0, 1, (1,)), spaces.Discrete(3)
    buffer = OptionReplayBuffer(4, space, actions, n_sources=1)
    here = np.zeros((1, 1), np.float32)
    names = ("obs", "next_obs", "action", "reward", "done", "infos")
    step: dict[str, Any] = dict(zip(names, (here, here, np.array([0]), np.zeros(1), np.zeros(1), [{}]), strict=True))
    mask = np.array([[True, False, True]])
    buffer.add(**step)
    buffer.add(**step, action_masks=mask, next_action_masks=~mask)
    buffer.add(**step)
    data = buffer.get_sequences(np.arange(3), np.zeros(3, dtype=np.int64))
    assert data.action_masks is not None
    everything = [True, True, True]
    expected = [everything, mask[0].tolist(), everything, everything, (~mask[0]).tolist(), everything]
    assert data.action_masks.tolist() == expected


@pytest.mark.parametrize("exported", [False, True])
def test_a_loaded_model_goes_on_with_masks(exported: bool, tmp_path: Path) -> None:
    env = make_vec_env(Strict, 2, seed=0)
    model = CAPS("MlpPolicy", env, source_policies=[], **SMALL).learn(600)
    model.save_replay_buffer(tmp_path / "buffer")
    path = tmp_path / ("model.npz" if exported else "model.zip")
    (model.export if exported else model.save)(path)
    loaded = CAPS.load(path, env=make_vec_env(Strict, 2, seed=0))
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert loaded.replay_buffer.forbidden is not None
    np.testing.assert_array_equal(loaded.replay_buffer.forbidden, model.replay_buffer.forbidden)
    loaded.learn(600, reset_num_timesteps=False)
    discounted_returns(loaded, make_vec_env(Strict, 2, seed=5), 0.99, 20)
    assert loaded.num_timesteps == 1200


def test_a_model_with_masks_is_a_source(tmp_path: Path) -> None:
    CAPS("MlpPolicy", Strict(), **SMALL).learn(100).export(tmp_path / "old")
    masked_ppo = MaskablePPO("MlpPolicy", Strict(), n_steps=64, seed=0).learn(128)
    masked_ppo.save(tmp_path / "ppo")
    env = make_vec_env(Strict, 2, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sources = [tmp_path / "old.npz", tmp_path / "ppo.zip"]
        model = CAPS("MlpPolicy", env, source_policies=sources, **SMALL).learn(300)
        # They know the masks themselves, so that both can be followed everywhere but where truncation hides them
        assert (model.replay_buffer.option_actions[: model.replay_buffer.pos] >= 0).all()
        assert all(0 <= worth.mean <= 1 for worth in evaluate_sources(sources, make_vec_env(Strict, 2), 5))


# --- evaluation ---


def test_evaluations_pass_masks_on() -> None:
    env, eval_env = make_vec_env(Strict, 2, seed=0), make_vec_env(Strict, 1, seed=1)
    model: Any = CAPS("MlpPolicy", env, source_policies=strict_sources(), **SMALL)
    often: dict[str, Any] = {"eval_freq": 100, "n_eval_episodes": 3}
    callbacks = [ReuseEvalCallback(eval_env, learner_alone=alone, **often) for alone in (False, True)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(600, [*callbacks, MaskableEvalCallback(eval_env, **often)])
        for controller in (OPTIONS, ACTOR, SAMPLED_ACTOR, Behaviour(model.options.names[0], is_source=True)):
            model.policy.gate = model.gate = Gate(controller)
            for acting in (model, model.learner()):
                maskable_evaluate_policy(acting, eval_env, 3)
                evaluate_policy(with_masks(acting, eval_env), eval_env, 3)
                discounted_returns(acting, eval_env, 0.99, 3)
                discounted_returns(acting, eval_env, 0.99, 3, deterministic=False)
            run_episode(model, eval_env)
        single = Strict()
        evaluate_policy(with_masks(model, single), single, 3, warn=False)
    assert callbacks[0].model is model
    evaluate_sources(strict_sources(), eval_env, 3)
    with pytest.warns(UserWarning, match="predict got none, so it may do what is not allowed: pass action_masks"):
        model.predict(single.reset(seed=0)[0], deterministic=True)


def test_an_evaluation_is_reproducible() -> None:
    """Also where a source acts alone and does what is not allowed, so that random actions take its place."""
    model = CAPS("MlpPolicy", Strict(), source_policies=strict_sources(), **SMALL)
    model.policy.gate = Gate(Behaviour(model.options.names[1], is_source=True))
    first, second = (discounted_returns(model, make_vec_env(Strict, 1, seed=3), 0.99, 20) for _ in range(2))
    np.testing.assert_array_equal(first, second)


# --- learning ---


class Hidden(VecEnvWrapper):
    """The same task for someone who is not told what is allowed."""

    def has_attr(self, attr_name: str) -> bool:
        return attr_name != "action_masks" and super().has_attr(attr_name)

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


def test_trains_of_the_railway() -> None:
    """Who asks for a train that there is none of stays; the wrong train is one of those that there are."""
    world, rng = Railway(("ABC", "BD"), [("A", "D")]), np.random.default_rng(0)
    states = np.repeat([[1, 0, 0]], 1000, axis=0)
    assert world.action_masks(states)[0].tolist() == [True, False, True, True]
    arrived = world.step(states, np.full(1000, 0), rng)[0][:, 0]
    counts = np.bincount(arrived, minlength=4)
    assert counts[1] == 0
    assert counts[[2, 3]].min() > 15
    assert counts[0] > 900
    states = np.repeat([[2, 0, 0]], 1000, axis=0)
    assert set(world.step(states, np.full(1000, 0), rng)[0][:, 0]) == {2}
    # From A to D by B, where one train in ten goes to any of three: checked by simulation
    env = BatchedVecEnv(world, 100, 0)
    found = discounted_returns(Alone(as_source(world.policy(0.9))), env, 0.9, 2000)
    assert found.mean() == pytest.approx(world.optimum(0.9), abs=4 * found.std() / np.sqrt(2000))


def test_masks_pay() -> None:
    """From one end of a railway to the other: most of its sixteen stations cannot be gone to from where one is."""
    world = Railway(("ABCDEFGH", "BIJKLC", "FMNOPG"), [("A", "H")], horizon=60)
    returns = []
    for wrapper in (lambda env: env, Hidden):
        found = []
        for seed in range(2):
            env, eval_env = (wrapper(BatchedVecEnv(world, 8, apart)) for apart in (0, 1))
            small: dict[str, Any] = {"policy_kwargs": {"net_arch": [32]}, "train_freq": 8, "seed": seed}
            model = CAPS("MlpPolicy", env, source_policies=[world.go_to("A"), world.go_to("H")], **small).learn(6000)
            found.append(discounted_returns(model, eval_env, 0.99, 100).mean() / world.optimum(0.99))
        returns.append(np.mean(found))
    assert returns[0] > 0.7
    assert returns[0] > returns[1] + 0.3
