"""Whatever a user does to the network, rollout, training and ``predict`` see the same one."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn
from torch.nn import functional as F

from sb3_caps import CAPS
from sb3_caps.caps.acting import draw
from sb3_caps.caps.gate import EXPLORING, OPTIONS
from sb3_caps.caps.networks import OptionEstimates, OptionQNetwork, add_action_values
from sb3_caps.caps.policies import CAPSPolicy
from sb3_caps.caps.selection import CAPSSelector
from sb3_caps.replay.type_aliases import OptionReplayBufferSamples
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.execution import OptionExecution
from sb3_caps.reuse.selectors import Selector
from sb3_caps.sources import Observations, SourcePolicy, SourceState
from tests.paper import paper
from tests.toy_world import LEFT, LENGTH, RIGHT, Corridor, go_left, go_right

CELLS = np.eye(LENGTH, dtype=np.float32)
# Without copies of the network: the paper's rule, and ours with the values that sources share with actions
SETTINGS: list[dict[str, Any]] = [paper(), {"policy_kwargs": {"averaging": None}, "safe": False}]


class DuelingNetwork(OptionQNetwork):
    """A value for the state and an advantage for each option."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state_value = nn.Linear(self.net_arch[-1], 1)

    def forward(self, obs: PyTorchObs) -> OptionEstimates:  # type: ignore[override]
        hidden = self.q_net[:-1](self.extract_features(obs, self.features_extractor))
        advantages = self.q_net[-1](hidden)
        values = self.state_value(hidden) + advantages - advantages.mean(dim=1, keepdim=True)
        return OptionEstimates(values, self.termination_logits(hidden.detach()))

    @th.no_grad()
    def rescale(self, factor: float) -> None:
        super().rescale(factor)
        for parameter in self.state_value.parameters():
            parameter.mul_(factor)


class DuelingPolicy(CAPSPolicy):
    """CAPS with a dueling head."""

    q_net_class = DuelingNetwork


def make(policy: str | type[CAPSPolicy] = "MlpPolicy", **kwargs: Any) -> CAPS:
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    return CAPS(policy, env, source_policies=[go_right, go_left], learning_starts=20, seed=0, **kwargs)


def replace_last_layer(model: CAPS) -> None:
    model.q_net.q_net[-1] = nn.Sequential(nn.Linear(64, 5), nn.Tanh())


def hook(model: CAPS) -> None:
    model.q_net.register_forward_hook(lambda _, __, found: found._replace(values=found.values.flip(1)))


def hook_inside(model: CAPS) -> None:
    model.q_net.q_net[0].register_forward_hook(lambda _, __, found: -found)


def new_data(model: CAPS) -> None:
    for parameter in model.q_net.parameters():
        parameter.data = th.randn_like(parameter)


def forward_of_an_instance(model: CAPS) -> None:
    plain = model.q_net.forward
    model.q_net.forward = lambda obs: plain(-obs)  # type: ignore[method-assign, operator]


def nothing(model: CAPS) -> None:
    pass


CHANGES: list[tuple[str | type[CAPSPolicy], Callable[[CAPS], None]]] = [
    ("MlpPolicy", nothing),
    ("MlpPolicy", replace_last_layer),
    ("MlpPolicy", hook),
    ("MlpPolicy", hook_inside),
    ("MlpPolicy", new_data),
    ("MlpPolicy", forward_of_an_instance),
    (DuelingPolicy, nothing),
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("policy", "change"), CHANGES)
def test_one_network_acts_learns_and_predicts(
    policy: str | type[CAPSPolicy], change: Callable[[CAPS], None], settings: dict[str, Any]
) -> None:
    model = make(policy, **settings)
    model.learn(60)
    change(model)
    sources = np.tile([RIGHT, LEFT], (LENGTH, 1))
    with th.no_grad():
        estimates = model.policy.complete(model.q_net(th.as_tensor(CELLS)), th.as_tensor(sources))
    values, beta = estimates.values.numpy(), estimates.terminations.numpy()
    # The rollout and prediction
    for found in (model.policy.acting()(CELLS, sources), model.policy.values_and_terminations(CELLS)):
        for ours, theirs in zip(found, (values, beta), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    chosen = model.predict(CELLS, deterministic=True)[1][0]
    if settings is SETTINGS[0]:
        np.testing.assert_array_equal(chosen, values.argmax(axis=1))
    # A source that is nearly the best one is preferred
    assert (values[np.arange(LENGTH), chosen] >= values.max(axis=1) - 0.02).all()
    # The loss and its target
    data = model.replay_buffer.sample(16)
    with th.no_grad():
        learned, _ = model._estimates_and_targets(data)
        plain = model.policy.complete(model.q_net(data.observations), data.option_actions)
        th.testing.assert_close(learned.values.flatten(0, 1), plain.values[: data.mask.numel()])


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("policy", "change"), CHANGES)
def test_the_changed_network_is_the_one_that_is_trained(
    policy: str | type[CAPSPolicy], change: Callable[[CAPS], None], settings: dict[str, Any]
) -> None:
    model = make(policy, learning_rate=0.01, **settings)
    change(model)
    # SB3's way after a change of layers: an optimizer for the parameters that there are now
    model.policy.optimizer = th.optim.Adam(model.q_net.parameters(), lr=0.01)
    before = deepcopy(list(model.q_net.parameters()))
    model.learn(100)
    values = [name for name, _ in model.q_net.named_parameters() if "termination" not in name]
    changed = {
        name: not th.equal(old, new)
        for (name, new), old in zip(model.q_net.named_parameters(), before, strict=True)
        if name in values
    }
    assert all(changed.values()), changed


def test_a_rollout_acts_by_parameters_that_were_replaced_before_it() -> None:
    """Greedy from the start: what the rollout does shows which network it acts by."""
    model = make(exploration_initial_eps=0.0, exploration_final_eps=0.0, gradient_steps=0, **paper(termination=1.0))
    model.learning_starts = 0
    for best in (3, 1):
        last = model.q_net.q_net[-1]
        assert isinstance(last, nn.Linear)
        last.weight.data, last.bias.data = th.zeros(5, 64), th.eye(5)[best]
        model.learn(20, reset_num_timesteps=False)
        row = model.replay_buffer.pos
        assert (model.replay_buffer.options[row - 10 : row] == best).all()


def test_training_mode_is_told_truly() -> None:
    model = make()
    seen: list[bool] = []
    plain = model._compute_loss

    def watched(data: OptionReplayBufferSamples, estimates: OptionEstimates, targets: th.Tensor) -> th.Tensor:
        seen.append(model.policy.training and model.q_net.training and not model.q_net_target.training)
        return plain(data, estimates, targets)

    model._compute_loss = watched  # type: ignore[method-assign, assignment]
    model.learn(60)
    assert seen
    assert all(seen)
    model.predict(CELLS, deterministic=True)
    assert not model.policy.training
    assert not model.q_net.training


class ShrinkingCAPS(CAPS):
    """A loss of its own for all of it: squared errors, and a penalty on large values."""

    def _compute_loss(
        self, replay_data: OptionReplayBufferSamples, estimates: OptionEstimates, targets: th.Tensor
    ) -> th.Tensor:
        values = estimates.values[replay_data.learned]
        return F.mse_loss(values, targets[replay_data.learned]) + values.square().mean()


@pytest.mark.parametrize("whole", [False, True])
def test_a_loss_of_ones_own(whole: bool) -> None:
    """It learns what ours learns from: not from what lies outside of a sequence, nor of a source that is disabled."""
    algorithm: Any = ShrinkingCAPS if whole else CAPS
    given: dict[str, Any] = {} if whole else {"loss_fn": F.mse_loss, "termination": 1.0}
    env, sources = make_vec_env(Corridor, n_envs=2, seed=0), [go_right, go_left]
    model = algorithm("MlpPolicy", env, source_policies=sources, learning_starts=1000, seed=0, safe=False, **given)
    model.learn(60)
    model.gate.disabled = {"go_left"}
    state = model.rng.bit_generator.state
    data = model._sample(32)
    estimates, targets = model._estimates_and_targets(data)
    learned = data.agreements & data.mask[..., None] & th.tensor([True, False, True, True, True])
    assert (data.agreements & data.mask[..., None])[..., 1].any()
    errors, values = (estimates.values[learned] - targets[learned]) ** 2, estimates.values[learned]
    expected = errors.mean() + (values**2).mean() if whole else errors.sum() / data.mask.sum()
    model.rng.bit_generator.state = state
    model.train(gradient_steps=1, batch_size=32)
    assert model.logger.name_to_value["train/loss"] == pytest.approx(expected.item(), rel=1e-5)
    gradient = model.q_net.q_net[-1].bias.grad
    assert isinstance(gradient, th.Tensor)
    assert (gradient != 0).tolist() == [True, False, True, True, True]


class InTurns(Selector):
    """A selector of one's own: sources and exploration in turns, and the model acts by the first source."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.turns, self.results = [*self.sources, EXPLORING], list[EpisodeResult]()
        self.n_selected = 0

    def select(self, env: int) -> Behaviour:
        self.n_selected += 1
        return self.turns[self.n_selected % len(self.turns)]

    def update(self, result: EpisodeResult) -> None:
        self.results.append(result)

    def decide(self) -> Behaviour:
        return self.turns[0]


def test_a_selector_of_ones_own(tmp_path: Path) -> None:
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    model = make(selector_class=InTurns)
    for _ in range(2):
        model.learn(300, reset_num_timesteps=False)
    chooser: Any = model.selector
    assert {result.behaviour for result in chooser.results} == set(chooser.turns)
    # In each of two environments one is under way
    assert chooser.n_selected == len(chooser.results) + 2
    assert sum(result.length for result in chooser.results) + model._tracker.lengths.sum() == 600
    assert all(result.reward == 1.0 for result in chooser.results if result.behaviour.name == "go_right")
    model.save(tmp_path / "model")
    for each in (model, CAPS.load(tmp_path / "model", env=env)):
        assert each.predict(CELLS, deterministic=True)[0].tolist() == [RIGHT] * LENGTH
        assert len(each.selector.results) == len(chooser.results)  # type: ignore[attr-defined]
    # Another selector knows nothing of what this one concluded
    ours = CAPS.load(tmp_path / "model", env=env, selector_class=None)
    assert isinstance(ours.selector, CAPSSelector)
    assert ours.gate.controller == OPTIONS


class WithoutEnd(OptionExecution):
    """An execution of one's own: options go on to the end of the episode."""

    def ends(self, values: np.ndarray, terminations: np.ndarray, draws: np.ndarray | None = None) -> np.ndarray:
        return np.zeros(values.shape, dtype=bool)


class PolicyWithoutEnd(CAPSPolicy):
    @property
    def execution(self) -> OptionExecution:
        usual = super().execution
        return WithoutEnd(usual.mode, usual.margins)


def test_an_execution_of_ones_own() -> None:
    """In training and in ``predict``."""
    greedy = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0, "safe": False}
    model = make(PolicyWithoutEnd, **greedy)
    model.learning_starts = 0
    model.learn(200)
    buffer = model.replay_buffer
    options, dones = buffer.options[: buffer.pos], buffer.dones[: buffer.pos] | buffer.timeouts[: buffer.pos]
    changes = options[1:] != options[:-1]
    assert not changes[~dones[:-1].astype(bool)].any()
    active, state = [], None
    for cell in CELLS:
        _, state = model.predict(cell, state, deterministic=True)
        active.append(int(state[0][0]))
    assert len(set(active)) == 1


class Exploring(Selector):
    def select(self, env: int) -> Behaviour:
        return EXPLORING

    def decide(self) -> Behaviour:
        return OPTIONS


class WithoutLeft(Exploring):
    @property
    def disabled(self) -> set[str]:
        return {"go_left"}


def boltzmann(values: np.ndarray, epsilon: float, rng: np.random.Generator, greedy: np.ndarray) -> np.ndarray:
    """An exploration of one's own: by values alone, the hotter the more there is to explore."""
    weights = np.exp((values - values.max(axis=1, keepdims=True)) / max(epsilon, 1e-3))
    return draw(weights, rng.random(len(values)))


def test_an_exploration_of_ones_own(tmp_path: Path) -> None:
    def prepared(epsilon: float) -> np.ndarray:
        schedule: dict[str, Any] = {"exploration_initial_eps": epsilon, "exploration_final_eps": epsilon}
        selector = WithoutLeft if epsilon == 1.0 else Exploring
        model = make(exploration=boltzmann, selector_class=selector, gradient_steps=0, **schedule)
        last = model.policy.acting_net.q_net[-1]
        assert isinstance(last, nn.Linear)
        with th.no_grad():
            last.weight.zero_()
            last.bias.copy_(th.tensor([0.0, 0.0, 0.5, 0.5, 1.0]))
        model.save(tmp_path / "model")
        model = CAPS.load(tmp_path / "model", env=model.get_env())
        model.learn(4000)
        return np.bincount(model.replay_buffer.options[10 : model.replay_buffer.pos].ravel(), minlength=5) / 3980

    # Sources share the values of their actions: right and left
    weights = np.exp([0.5, 0.5, 0.5, 0.5, 1.0])
    np.testing.assert_allclose(prepared(1.0)[[0, 2, 3, 4]], weights[1:] / weights[1:].sum(), atol=0.03)
    # Cold, what comes after the random start is the best option
    assert prepared(0.0)[4] == 1.0


class InAndOut(SourcePolicy):
    """A source of one's own: it remembers how often it was asked."""

    def __init__(self) -> None:
        super().__init__(self.step, "in_and_out")

    def step(
        self, observations: Observations, state: SourceState, episode_starts: np.ndarray
    ) -> tuple[np.ndarray, SourceState]:
        """Right first, then left, and so on."""
        steps = np.zeros(len(episode_starts), dtype=np.int64) if state is None else np.where(episode_starts, 0, *state)
        return np.where(steps % 2 == 0, RIGHT, LEFT), (steps + 1,)


def test_a_source_of_ones_own(tmp_path: Path) -> None:
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    sources = [InAndOut(), go_left]
    model = CAPS("MlpPolicy", env, source_policies=sources, learning_starts=20, seed=0, selector_class=InTurns)
    model.learn(100).save(tmp_path / "model")
    for each in (model, CAPS.load(tmp_path / "model", env=env)):
        assert each.options.source_names == ["in_and_out", "go_left"]
        state, taken = None, []
        for _ in range(3):
            actions, state = each.predict(CELLS[:2], state, deterministic=True)
            taken.append(actions.tolist())
        assert taken == [[RIGHT, RIGHT], [LEFT, LEFT], [RIGHT, RIGHT]]


def test_what_a_source_learns_does_not_reach_the_value_of_its_action() -> None:
    outputs = th.tensor([[1.0, 2.0, 3.0, 5.0]], requires_grad=True)
    # Two sources that take the second and the first of two actions
    shared = add_action_values(outputs, th.tensor([[1, 0]]))
    assert shared.tolist() == [[6.0, 5.0, 3.0, 5.0]]
    shared[0, 0].backward()
    assert outputs.grad is not None
    assert outputs.grad.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    # An action that is not known counts as the lowest
    assert add_action_values(outputs, th.tensor([[-1, 1]])).tolist() == [[4.0, 7.0, 3.0, 5.0]]
