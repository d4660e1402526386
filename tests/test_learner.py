"""The learner alone: for `evaluate_policy`, for callbacks, and in what is logged and printed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps import CAPS
from sb3_caps.caps import PAPER
from sb3_caps.caps.gate import ACTOR, BEST, LEARNERS, OPTIONS
from sb3_caps.caps.summary import PolicySummary, ReuseSummary
from sb3_caps.reuse.callbacks import ReuseEvalCallback
from sb3_caps.reuse.episodes import Behaviour
from tests.toy_world import RIGHT, Corridor, go_left, go_right

SOURCE = Behaviour("go_right", is_source=True)


def make(**kwargs: Any) -> CAPS:
    return CAPS("MlpPolicy", Monitor(Corridor()), source_policies=[go_right, go_left], seed=0, device="cpu", **kwargs)


class ActsBySource(BaseCallback):
    """Lets the model act by its best source, whatever it learned."""

    def _on_step(self) -> bool:
        self.model.gate.controller = SOURCE  # type: ignore[attr-defined]
        return True


def test_the_learner_acts_whatever_the_gate_says() -> None:
    model = make()
    observations = np.eye(10, dtype=np.float32)
    model.gate.controller = OPTIONS
    learned = model.predict(observations, deterministic=True)[0]
    model.gate.controller = SOURCE
    assert (model.predict(observations, deterministic=True)[0] == RIGHT).all()
    learner = model.learner()
    assert np.array_equal(learner.predict(observations, deterministic=True)[0], learned)
    with learner.acting():
        assert np.array_equal(model.predict(observations, deterministic=True)[0], learned)
        assert model.gate.controller == SOURCE
    assert (model.predict(observations, deterministic=True)[0] == RIGHT).all()
    # It is a policy as any other to those who evaluate
    env = make_vec_env(Corridor, seed=1)
    assert evaluate_policy(model, env, n_eval_episodes=3)[0] == 1.0
    reward: Any = evaluate_policy(model.learner(), env, n_eval_episodes=3)[0]
    assert reward < 1.0 or (learned == RIGHT).all()


def test_which_learner_it_is() -> None:
    model = make().learn(600)
    model.gate.controller = ACTOR
    assert model.learner().behaviour == ACTOR
    # Neither a source nor the networks that did best so far
    for other in (SOURCE, BEST):
        model.gate.controller = other
        assert model.learner().behaviour in LEARNERS
    # What the model knows of its sources stays as it was
    assert model.selector.source_names == ["go_right", "go_left"]
    assert make().learner().behaviour == make(**PAPER).learner().behaviour == OPTIONS


def test_a_failure_leaves_the_gate_as_it_was() -> None:
    model = make()
    model.gate.controller = SOURCE
    with pytest.raises(ZeroDivisionError), model.learner().acting():
        _ = 1 / 0
    assert model.policy.gate is model.gate


def logged(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "progress.json").read_text().splitlines()]
    return [row for row in rows if any(key.startswith("eval/") for key in row)]


def test_evaluations_tell_of_both(tmp_path: Path) -> None:
    model = make(learning_starts=10)
    model.set_logger(configure(str(tmp_path), ["json", "csv", "stdout"]))
    callback = ReuseEvalCallback(Monitor(Corridor()), eval_freq=100, n_eval_episodes=4, verbose=0)
    model.learn(200, callback=[ActsBySource(), callback], log_interval=10**6)
    rows = logged(tmp_path)
    assert [row["eval/mean_reward"] for row in rows] == [1.0, 1.0] == [callback.best_mean_reward] * 2
    assert all(0.0 <= row["eval/learner_mean_reward"] <= 1.0 for row in rows)


def test_all_can_be_judged_by_the_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(gradient_steps=0, safe=False)
    # It stands still
    with_bias: Any = model.q_net.q_net[-1]
    with_bias.weight.data.zero_()
    with_bias.bias.data.copy_(with_bias.bias.data.new_tensor([0.0, 0.0, 0.0, 0.0, 9.0]))
    assert model.policy.q_net_average is not None
    model.policy.q_net_average.load_state_dict(model.q_net.state_dict())
    model.set_logger(configure(str(tmp_path), ["json"]))
    stop = StopTrainingOnRewardThreshold(reward_threshold=0.9)
    by_model = ReuseEvalCallback(Monitor(Corridor()), eval_freq=50, callback_on_new_best=stop, verbose=0)
    model.learn(120, callback=[ActsBySource(), by_model], log_interval=10**6)
    assert model.num_timesteps == 50
    stop = StopTrainingOnRewardThreshold(reward_threshold=0.9)
    by_learner = ReuseEvalCallback(
        Monitor(Corridor()), eval_freq=50, callback_on_new_best=stop, verbose=0, learner_alone=True
    )
    model.learn(120, callback=[ActsBySource(), by_learner], log_interval=10**6)
    assert model.num_timesteps == 120
    last = logged(tmp_path)[-1]
    assert (last["eval/mean_reward"], last["eval/model_mean_reward"]) == (0.0, 1.0)


def test_where_the_learner_acts_both_are_the_same(tmp_path: Path) -> None:
    model = make(safe=False)
    model.set_logger(configure(str(tmp_path), ["json", "stdout"]))
    model.learn(100, callback=ReuseEvalCallback(Monitor(Corridor()), eval_freq=50, verbose=0), log_interval=10**6)
    rows = logged(tmp_path)
    reward = [row["eval/mean_reward"] for row in rows if "eval/mean_reward" in row]
    assert [row["eval/learner_mean_reward"] for row in rows if "eval/learner_mean_reward" in row] == reward


def test_evaluations_in_normalised_environments() -> None:
    model = CAPS("MlpPolicy", VecNormalize(make_vec_env(Corridor)), source_policies=[go_right], seed=0)
    eval_env = VecNormalize(make_vec_env(Corridor), training=False, norm_reward=False)
    model.learn(60, callback=[ActsBySource(), ReuseEvalCallback(eval_env, eval_freq=50, verbose=0)])
    assert eval_env.obs_rms.count == model.get_vec_normalize_env().obs_rms.count - 10  # type: ignore


def test_only_caps_has_a_learner_of_its_own() -> None:
    model = DQN("MlpPolicy", Corridor())
    with pytest.raises(ValueError, match="ReuseEvalCallback is for CAPS, not DQN: use SB3's EvalCallback"):
        model.learn(10, callback=ReuseEvalCallback(Corridor()))


def test_logs_say_who_acts(tmp_path: Path) -> None:
    model = make()
    model.set_logger(configure(str(tmp_path), ["json"]))
    model.learn(600, log_interval=1)
    rows = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    for row in rows:
        by_source = row["reuse/acts_by"] in ("go_right", "go_left")
        number = ["go_right", "go_left"].index(row["reuse/acts_by"]) + 1 if by_source else 0
        assert row["reuse/acts_by_source"] == number
    assert 1 in {row["reuse/acts_by_source"] for row in rows}
    assert any("reuse/learner_lead" in row for row in rows)


SOURCES = [PolicySummary("half", 234.5, 3.4, 40, 0.2, 3.0), PolicySummary("left", 9.0, 0.3, 9, 0.0, 1.0)]
TOO_FEW = "4 episodes are too few to be sure that it is better."
LEARNER = [PolicySummary("options", 228.0, 98.0, 4), PolicySummary("actor", 274.9, 101.3, 4)]


@pytest.mark.parametrize(
    ("acts_by", "reason"),
    [
        ("actor", "It had the highest mean return in whole episodes."),
        ("half", f"actor had a higher mean return, 274.9 against 234.5, but {TOO_FEW}"),
        ("options", f"actor had a higher mean return, 274.9 against 228, but {TOO_FEW}"),
        ("best options", "No whole episode of it has ended yet."),
    ],
)
def test_the_summary_says_why(acts_by: str, reason: str) -> None:
    exploring = PolicySummary("exploring", 400.0, 1.0, 9)
    summary = ReuseSummary([*SOURCES, *LEARNER, exploring], acts_by)
    told = {"actor": "actor (the learner: the likeliest action of its actor)", "half": "half"}
    assert str(summary).splitlines()[-1].startswith(f"predict acts by: {told.get(acts_by, acts_by)}")
    assert str(summary).endswith(f". {reason}")
    assert "actor      274.9 ± 101" in str(summary)


def test_the_summary_of_a_run() -> None:
    model = make().learn(600)
    summary = model.reuse_summary()
    by_name = {policy.name: policy for policy in summary.policies}
    assert by_name["go_right"].mean_reward == 1.0
    # Few episodes may be alike by luck, so there is an error all the same
    assert by_name["go_right"].error > 0.0
    assert "± 0 " not in str(summary)
