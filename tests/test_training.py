"""Steps of training by the paper's rule and by the default one, against independent computations."""

from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch.nn import functional as F

from sb3_caps import CAPS, PiecewiseLinear
from sb3_caps.caps.gate import ACTOR, BEST, OPTIONS
from tests.paper import paper
from tests.toy_world import Corridor, go_left, go_right, right_then_stay

SOURCES = [go_right, right_then_stay, go_left]


def trained_a_little(**kwargs: Any) -> CAPS:
    """A model of the paper with a filled buffer, an untrained network and a logger."""
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    model = CAPS("MlpPolicy", env, seed=3, source_policies=SOURCES, learning_starts=400, **paper(**kwargs))
    model.learn(400)
    model.set_logger(configure(None, []))
    return model


def terminations(model: CAPS, hidden: th.Tensor) -> th.Tensor:
    return th.sigmoid(model.q_net.termination_logits(hidden))


def slow_loss(model: CAPS, rows: np.ndarray, envs: np.ndarray) -> th.Tensor:
    """Algorithm 2 with double Q, transition by transition and option by option."""
    buffer, losses = model.replay_buffer, []
    agreements = buffer.agreements[rows, envs]
    for i, (row, env) in enumerate(zip(rows, envs, strict=True)):
        observation = th.as_tensor(buffer.stores[None].get(np.array([row]), np.array([env])))
        successor = th.as_tensor(buffer.stores[None].get_next(np.array([row]), np.array([env])))
        with th.no_grad():
            online, target = model.q_net(successor).values[0], model.q_net_target(successor).values[0]
            beta = model.q_net(successor).terminations[0]
        terminal = bool(buffer.dones[row, env]) and not bool(buffer.timeouts[row, env])
        for option, agrees in enumerate(agreements[i]):
            if agrees:
                u = (1 - beta[option]) * target[option] + beta[option] * target[online.argmax()]
                wanted = float(buffer.rewards[row, env]) + (0.0 if terminal else 0.99 * u)
                losses.append(F.smooth_l1_loss(model.q_net(observation).values[0, option], th.as_tensor(wanted)))
    return th.stack(losses).sum() / len(rows)


def test_one_gradient_step_equals_the_slow_one() -> None:
    model, reference = trained_a_little(), trained_a_little()
    with th.no_grad():  # a target network of its own, and terminations that differ between options
        for net in (model, reference):
            th.manual_seed(1)
            for parameter in [*net.q_net_target.parameters(), *net.q_net.termination_net.parameters()]:
                parameter.add_(0.1 * th.randn_like(parameter))
    drawn = reference.replay_buffer.sample(64)
    starts, envs = np.divmod(drawn.places[0], 2)
    model.train(gradient_steps=1, batch_size=64)

    loss = slow_loss(reference, starts, envs)
    assert model.logger.name_to_value["train/loss"] == pytest.approx(loss.item(), rel=1e-4)
    reference.policy.optimizer.zero_grad()
    loss.backward()
    th.nn.utils.clip_grad_norm_(reference.q_net.parameters(), 10)
    reference.policy.optimizer.step()
    for ours, theirs in zip(model.q_net.parameters(), reference.q_net.parameters(), strict=True):
        th.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


class SlowRule:
    """
    The default rule for one option of one step at a time, written down from its description.

    :param model: with sequences in its buffer
    """

    def __init__(self, model: CAPS) -> None:
        self.model, self.buffer = model, model.replay_buffer
        self.gamma, self.n_sources = 0.99, len(SOURCES)
        self.scale = self.largest_return()
        self.disabled = {i for i, name in enumerate(model.options.names) if name in model.gate.disabled}

    def largest_return(self) -> float:
        """The largest discounted sum of rewards since the start of an episode."""
        largest = 0.0
        for env in range(self.buffer.n_envs):
            total = 0.0
            for row in range(self.buffer.size()):
                total = self.gamma * total + float(self.buffer.rewards[row, env])
                largest = max(largest, abs(total))
                if self.buffer.dones[row, env]:
                    total = 0.0
        return largest

    def sequence(self, row: int, env: int) -> list[tuple[int, int]]:
        """Up to eight steps of one episode."""
        steps = [(row, env)]
        while len(steps) < 8 and not self.buffer.dones[steps[-1]] and steps[-1][0] + 1 < self.buffer.size():
            steps.append((steps[-1][0] + 1, env))
        return steps

    def state(self, step: tuple[int, int], after: bool = False) -> th.Tensor:
        store = self.buffer.stores[None]
        read = store.get_next if after else store.get
        return th.as_tensor(read(np.array([step[0]]), np.array([step[1]])))

    def action(self, option: int, state: th.Tensor) -> int:
        """π_i(s) of a source, a of the primitive that takes it."""
        return int(SOURCES[option](state.numpy())[0]) if option < self.n_sources else option - self.n_sources

    def of_options(self, outputs: th.Tensor, state: th.Tensor) -> th.Tensor:
        """Q_O(s, i) = Q(s, π_i(s)) + D_i(s), where D_i alone learns, and Q(s, a) for a primitive; so for β."""
        q = outputs[self.n_sources :]
        sources = [q[self.action(i, state)].detach() + outputs[i] for i in range(self.n_sources)]
        return th.stack([*sources, *q])

    def values(self, network: Any, state: th.Tensor) -> th.Tensor:
        hidden = network.q_net[:-1](state)
        # Sources take the hidden layers as they are
        outputs = [
            network.q_net[-1](hidden.detach())[0, : self.n_sources],
            network.q_net[-1](hidden)[0, self.n_sources :],
        ]
        return self.of_options(th.cat(outputs), state)

    def terminations(self, state: th.Tensor) -> th.Tensor:
        network = self.model.q_net
        hidden = network.q_net[:-1](state).detach()
        (layer, _), head = network.termination_hidden, network.termination_net
        own = (layer.weight @ hidden[0] + layer.bias).clamp(min=0)
        return th.sigmoid(self.of_options(head.weight @ own + head.bias, state))

    def loss(self, starts: list[tuple[int, int]]) -> th.Tensor:
        losses, n_steps = [], 0
        for start in starts:
            steps = self.sequence(*start)
            target = self.targets(steps)
            n_steps += len(steps)
            for t, step in enumerate(steps):
                state = self.state(step)
                values, beta = self.values(self.model.q_net, state), self.terminations(state)
                for option in range(self.n_sources + 3):
                    if option not in self.disabled and self.action(option, state) == self.buffer.actions[step]:
                        losses.append(F.smooth_l1_loss(values[option], th.tensor(target(t, option))))
                    # Whether the action that it takes is not the best one
                    ends = self.worth(self.action(option, state), state, values) < float(
                        self.allowed(values).max().detach()
                    )
                    losses.append(-0.1 * th.log(beta[option] if ends else 1 - beta[option]))
        return th.stack(losses).sum() / n_steps

    def allowed(self, values: th.Tensor) -> th.Tensor:
        return values[[option for option in range(len(values)) if option not in self.disabled]]

    def worth(self, action: int, state: th.Tensor, values: th.Tensor) -> float:
        """That of the best option that takes an action."""
        taking = [o for o in range(len(values)) if o not in self.disabled and self.action(o, state) == action]
        return max(float(values[o].detach()) for o in taking)

    def targets(self, steps: list[tuple[int, int]]) -> Any:
        """:return: the target of an option at a step of a sequence, by recursion"""

        @cache
        def target(t: int, option: int) -> float:
            reward = float(self.buffer.rewards[steps[t]]) / self.scale
            if self.buffer.dones[steps[t]] and not self.buffer.timeouts[steps[t]]:
                return reward
            state = self.state(steps[t], after=True)
            with th.no_grad():
                values = self.values(self.model.q_net, state)
                greedy = max(set(range(len(values))) - self.disabled, key=lambda o: float(values[o]))
                frozen = self.values(self.model.q_net_target, state)

            def value(o: int) -> float:
                follows = t + 1 < len(steps) and self.action(o, state) == self.buffer.actions[steps[t + 1]]
                return target(t + 1, o) if follows else float(frozen[o])

            beta = 0.1 if option < self.n_sources else 1.0
            return reward + self.gamma * ((1 - beta) * value(option) + beta * value(greedy))

        return target


def with_defaults() -> CAPS:
    """A model of the default rule with a filled buffer, and networks in which everything differs."""
    env = make_vec_env(
        lambda: gym.wrappers.TransformReward(Corridor(horizon=20), lambda reward: 5 * float(reward) - 0.25),
        n_envs=2,
        seed=0,
    )
    model = CAPS("MlpPolicy", env, seed=3, source_policies=SOURCES, learning_starts=400)
    model.learn(400)
    model.set_logger(configure(None, []))
    model.gate.disabled = {"right_then_stay"}
    th.manual_seed(1)
    with th.no_grad():
        for parameter in [*model.q_net.parameters(), *model.q_net_target.parameters()]:
            parameter.add_(0.1 * th.randn_like(parameter))
    return model


def test_one_gradient_step_of_the_default_rule_equals_the_slow_one() -> None:
    model, reference = with_defaults(), with_defaults()
    drawn = reference.replay_buffer.sample(256)
    starts = [divmod(int(place), 2) for place in drawn.places[0]]
    assert len(starts) == 32
    model.train(gradient_steps=1, batch_size=256)

    rule = SlowRule(reference)
    assert rule.scale > 1.5
    assert model._scale.value == pytest.approx(rule.scale)
    loss = rule.loss(starts)
    assert model.logger.name_to_value["train/loss"] == pytest.approx(loss.item(), rel=1e-4)
    reference.policy.optimizer.zero_grad()
    loss.backward()
    th.nn.utils.clip_grad_norm_(reference.q_net.parameters(), 10)
    for ours, theirs in zip(model.q_net.parameters(), reference.q_net.parameters(), strict=True):
        assert ours.grad is not None
        th.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    reference.policy.optimizer.step()
    # Options are executed by the average, which is the network itself after the first step
    assert model.policy.q_net_average is not None
    for net in (model.q_net, model.policy.q_net_average):
        for ours, theirs in zip(net.parameters(), reference.q_net.parameters(), strict=True):
            th.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("target_termination", "beta"),
    [(0.25, 0.25), (lambda remaining: 0.5 - 0.3 * remaining, 0.5), (PiecewiseLinear([(0, 0.1), (800, 0.5)]), 0.3)],
)
def test_termination_of_the_targets_alone(target_termination: Any, beta: float) -> None:
    """With β in the targets at a number, a gradient step is that of a model whose options end with this number."""
    settings: dict[str, Any] = {"learning_rate": 0.0, "initial": 0.9}
    model = trained_a_little(termination_kwargs={**settings, "target": target_termination})
    reference = trained_a_little(termination_kwargs=settings)
    with th.no_grad():
        reference.q_net.termination_net.bias.fill_(float(np.log(beta / (1 - beta))))
    for each in (model, reference):
        each.train(gradient_steps=1, batch_size=64)
    for ours, theirs in zip(model.q_net.q_net.parameters(), reference.q_net.q_net.parameters(), strict=True):
        th.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    # Options still end by the learned one
    assert terminations(model, th.zeros(1, 64))[0].tolist() == pytest.approx([0.9] * 6)


@pytest.mark.parametrize("gradient_steps", [1, 3])
def test_predict_acts_by_the_average_of_the_network(gradient_steps: int, tmp_path: Path) -> None:
    model = CAPS(
        "MlpPolicy",
        make_vec_env(Corridor, n_envs=2, seed=0),
        learning_starts=20,
        train_freq=1,
        gradient_steps=gradient_steps,
        learning_rate=0.01,
        policy_kwargs={"averaging": 0.25},
        safe=False,
        seed=0,
    )
    average = model.policy.q_net_average
    assert average is not None
    expected = model.q_net.state_dict()["q_net.0.weight"].clone()
    for step in range(1, 31):
        model.learn(2, reset_num_timesteps=step == 1)
        if model._n_updates:
            # A plain mean of what the network was, until that follows it less than the average is to
            share = max(1 - 0.75**gradient_steps, gradient_steps / model._n_updates)
            expected = (1 - share) * expected + share * model.q_net.state_dict()["q_net.0.weight"]
    assert model._n_updates == 20 * gradient_steps
    th.testing.assert_close(average.state_dict()["q_net.0.weight"], expected)
    assert not th.allclose(model.q_net.state_dict()["q_net.0.weight"], expected, atol=1e-3)

    with th.no_grad():
        for layer, best in ((average.q_net[-1], 2), (model.q_net.q_net[-1], 1)):
            assert isinstance(layer, th.nn.Linear)
            layer.bias.copy_(100.0 * th.eye(3)[best])
    observations = np.eye(10, dtype=np.float32)
    assert model.predict(observations, deterministic=True)[0].tolist() == [2] * 10
    model.save(tmp_path / "model")
    assert CAPS.load(tmp_path / "model").predict(observations, deterministic=True)[0].tolist() == [2] * 10


class NormedFeatures(BaseFeaturesExtractor):
    """Features with batch normalization and dropout."""

    def __init__(self, observation_space: spaces.Box, dropout: float = 0.0) -> None:
        super().__init__(observation_space, 10)
        self.norm, self.dropout = th.nn.BatchNorm1d(10), th.nn.Dropout(dropout)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.dropout(self.norm(observations))


def test_the_average_has_the_statistics_of_batch_normalization() -> None:
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    model = CAPS(
        "MlpPolicy",
        env,
        learning_starts=20,
        policy_kwargs={"features_extractor_class": NormedFeatures, "averaging": 0.25},
        seed=0,
        safe=False,
    )
    model.learn(100)
    average = model.policy.q_net_average
    assert average is not None
    ours, theirs = average.state_dict(), model.q_net.state_dict()
    name = "features_extractor.norm.running_mean"
    assert th.equal(ours[name], theirs[name])
    assert theirs[name].abs().max() > 0


@pytest.mark.parametrize("averaging", [None, 0.25])
def test_whatever_acts_is_not_in_training(averaging: float | None) -> None:
    """Batch normalization and dropout are for training: in acting they would make a draw of every action."""
    extractor = {"features_extractor_class": NormedFeatures, "features_extractor_kwargs": {"dropout": 0.5}}
    model = CAPS(
        "MlpPolicy",
        Corridor(),  # a single observation has no statistics of its own
        learning_starts=20,
        policy_kwargs={**extractor, "averaging": averaging},
        seed=0,
    )
    model.learn(200)
    for controller in (OPTIONS, ACTOR, BEST):
        model.gate.controller = controller
        before = {key: value.clone() for key, value in model.policy.state_dict().items()}
        values, _ = model.policy.values_and_terminations(np.eye(10, dtype=np.float32))
        again, _ = model.policy.values_and_terminations(np.eye(10, dtype=np.float32))
        np.testing.assert_array_equal(values, again)
        model.predict(np.eye(10, dtype=np.float32)[0])
        assert all(th.equal(value, before[key]) for key, value in model.policy.state_dict().items())


def test_target_network_follows_softly() -> None:
    model = trained_a_little(tau=0.25, target_update_interval=1)
    with th.no_grad():
        for parameter in model.q_net.parameters():
            parameter.fill_(1.0)
        for parameter in model.q_net_target.parameters():
            parameter.fill_(0.0)
    model._on_step()
    assert all(th.all(parameter == 0.25) for parameter in model.q_net_target.parameters())
