"""The replay buffer against a plain list of transitions, in every layout and after every kind of episode end."""

import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_caps import CAPS
from sb3_caps.replay import buffers
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.replay.observation_stores import ObservationStore, detected_frame_stack
from tests.toy_world import Corridor, go_right

N_SOURCES, N_ACTIONS = 3, 4
SIDE = 16  # of an image: large enough to be compressed


@dataclass
class Step:
    """One transition of one environment, as it happened."""

    observation: Any
    successor: Any
    action: int
    option: int
    option_actions: np.ndarray
    next_option_actions: np.ndarray
    log_prob: float
    reward: float
    done: bool
    truncated: bool
    followed: bool = True

    @property
    def agreements(self) -> list[bool]:
        return [*(self.option_actions == self.action), *(np.arange(N_ACTIONS) == self.action)]


class Film:
    """
    Environments whose observations are stacks of random frames, with a record of everything.

    :param layout: "first" or "last", where an image has its frames; "vector"; or "dict" of an image and a vector
    :param n_envs: number of environments
    :param frame_stack: number of frames in a stack
    :param seed: what to draw from
    """

    def __init__(self, layout: str, n_envs: int, frame_stack: int, seed: int) -> None:
        self.layout, self.n_envs, self.frame_stack = layout, n_envs, frame_stack
        self.rng = np.random.default_rng(seed)
        self.stacks = [self.start() for _ in range(n_envs)]
        self.steps: list[list[Step]] = [[] for _ in range(n_envs)]

    @property
    def space(self) -> spaces.Space:
        image = spaces.Box(0, 255, (self.frame_stack, SIDE, SIDE), np.uint8)
        vector = spaces.Box(-1, 1, (self.frame_stack,), np.float64)
        if self.layout == "dict":
            return spaces.Dict({"image": image, "vector": vector})
        last = spaces.Box(0, 255, (SIDE, SIDE, self.frame_stack), np.uint8)
        kinds: dict[str, spaces.Space] = {"first": image, "last": last, "vector": vector}
        return kinds[self.layout]

    def frame(self) -> np.ndarray:
        return self.rng.integers(255, size=(SIDE, SIDE), dtype=np.uint8)

    def start(self) -> list[np.ndarray]:
        # Wrappers begin with copies of the first frame, or with empty ones
        first = self.frame()
        filler = first if self.rng.random() < 0.5 else np.zeros_like(first)
        return [filler] * (self.frame_stack - 1) + [first]

    def observe(self, stack: list[np.ndarray]) -> Any:
        image, vector = np.stack(stack), np.array([frame[0, 0] / 256 for frame in stack])
        return {
            "first": image,
            "last": np.moveaxis(image, 0, -1),
            "vector": vector,
            "dict": {"image": image, "vector": vector},
        }[self.layout]

    def batch(self, observations: list[Any]) -> Any:
        if self.layout == "dict":
            return {key: np.stack([observation[key] for observation in observations]) for key in ("image", "vector")}
        return np.stack(observations)

    def step_into(self, buffer: OptionReplayBuffer) -> None:
        """One step of all environments, some of which end: by themselves, by truncation or by a reset from outside."""
        before, after = list(self.stacks), [[*stack[1:], self.frame()] for stack in self.stacks]
        new = []
        for env in range(self.n_envs):
            event = self.rng.choice(["none", "terminal", "truncated", "cut"], p=[0.7, 0.1, 0.1, 0.1])
            step = Step(
                self.observe(before[env]),
                self.observe(after[env]),
                int(self.rng.integers(N_ACTIONS)),
                int(self.rng.integers(N_SOURCES + N_ACTIONS)),
                self.rng.integers(N_ACTIONS, size=N_SOURCES),
                self.rng.integers(N_ACTIONS, size=N_SOURCES),
                # Of some it is not known how likely they were
                float(np.float32(np.log(self.rng.random()))) if self.rng.random() < 0.7 else np.nan,
                float(np.float32(self.rng.normal())),
                done=bool(event in ("terminal", "truncated")),
                truncated=bool(event == "truncated"),
                followed=bool(event == "none"),
            )
            self.steps[env].append(step)
            new.append(step)
            self.stacks[env] = after[env] if event == "none" else self.start()
        buffer.add(
            self.batch([step.observation for step in new]),
            self.batch([step.successor for step in new]),
            np.array([step.action for step in new]),
            np.array([step.reward for step in new], dtype=np.float32),
            np.array([step.done for step in new]),
            [{"TimeLimit.truncated": True} if step.truncated else {} for step in new],
            options=np.array([step.option for step in new]),
            log_probs=np.array([step.log_prob for step in new]),
            option_actions=np.array([step.option_actions for step in new]),
            next_option_actions=np.array([step.next_option_actions for step in new]),
        )


def assert_same(film: Film, found: Any, index: int, expected: Any) -> None:
    for key in expected if film.layout == "dict" else [None]:
        ours = found[key] if key else found
        np.testing.assert_array_equal(ours[index].numpy(), expected[key] if key else expected)


def check_all_sequences(buffer: OptionReplayBuffer, film: Film) -> None:
    """Every sequence that can be sampled, against the record."""
    size, length = buffer.size(), buffer.sequence_length
    starts, envs = (grid.reshape(-1) for grid in np.meshgrid(np.arange(size), np.arange(film.n_envs)))
    data = buffer.get_sequences(starts, envs)
    n = len(starts)
    for i in range(n):
        recorded = film.steps[envs[i]][-size:]
        steps = recorded[starts[i] : starts[i] + 1]
        while len(steps) < length and steps[-1].followed and starts[i] + len(steps) < size:
            steps.append(recorded[starts[i] + len(steps)])
        assert data.mask[:, i].tolist() == [t < len(steps) for t in range(length)]
        for t, step in enumerate(steps):
            assert_same(film, data.observations, t * n + i, step.observation)
            assert int(data.actions[t, i]) == step.action
            assert int(data.options[t, i]) == step.option
            # Each option learns from the steps that it agrees with
            assert data.agreements[t, i].tolist() == data.learned[t, i].tolist() == step.agreements
            assert data.option_actions[t * n + i].tolist() == step.option_actions.tolist()
            row, env = divmod(int(data.places[t, i]), film.n_envs)
            assert env == envs[i]
            assert buffer.rewards[row, env] == step.reward
            assert buffer.agreements[row, env].tolist() == step.agreements
            assert float(data.rewards[t, i]) == step.reward
            assert bool(data.dones[t, i]) == (step.done and not step.truncated)
        assert not data.learned[len(steps) :, i].any()
        assert_same(film, data.observations, len(steps) * n + i, steps[-1].successor)
        assert data.option_actions[len(steps) * n + i].tolist() == steps[-1].next_option_actions.tolist()


def check_latest(buffer: OptionReplayBuffer, film: Film, n_steps: int) -> None:
    """The latest steps of which it is known how likely they were, against the record."""
    data, size = buffer.latest(n_steps), buffer.size()

    def known(n_rows: int) -> list[tuple[Step, bool]]:
        """Of the latest rows, one environment after the other; and whether the next one is not the successor."""
        found = []
        for steps in film.steps:
            recent = steps[-n_rows:]
            for step, following in zip(recent, [*recent[1:], None], strict=True):
                if not np.isnan(step.log_prob):
                    last = following is None or not step.followed or bool(np.isnan(following.log_prob))
                    found.append((step, last))
        return found

    n_found = len(data.log_probs)
    assert n_found >= min(n_steps, len(known(size)))
    candidates = [known(n_rows) for n_rows in range(1, size + 1)]
    expected = next(each for each in candidates if [step.log_prob for step, _ in each] == data.log_probs.tolist())
    for i, (step, last) in enumerate(expected):
        assert_same(film, data.observations, i, step.observation)
        assert float(data.rewards[i]) == step.reward
        assert bool(data.dones[i]) == (step.done and not step.truncated)
        assert bool(data.last_steps[i]) == last
        assert [*data.option_actions[i].tolist(), int(data.actions[i])] == [*step.option_actions, step.action]
    ended = [step.successor for step, last in expected if last]
    for i, successor in enumerate(ended):
        assert_same(film, data.ended, i, successor)
    assert all(len(each) == len(ended) for each in (data.ended.values() if film.layout == "dict" else [data.ended]))


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(["first", "last", "vector", "dict"]),
    n_envs=st.integers(1, 3),
    rows=st.integers(1, 9),
    frame_stack=st.integers(1, 4),
    n_steps=st.integers(1, 25),
    sequence_length=st.integers(1, 4),
    optimized=st.booleans(),
    compressed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_buffer_gives_back_what_happened(
    layout: str,
    n_envs: int,
    rows: int,
    frame_stack: int,
    n_steps: int,
    sequence_length: int,
    optimized: bool,
    compressed: bool,
    seed: int,
) -> None:
    film = Film(layout, n_envs, frame_stack, seed)
    buffer = OptionReplayBuffer(
        rows * n_envs,
        film.space,
        spaces.Discrete(N_ACTIONS),
        "cpu",
        n_envs,
        optimize_memory_usage=optimized,
        n_sources=N_SOURCES,
        sequence_length=sequence_length,
        compression="zlib" if compressed and layout != "vector" else None,
    )
    for _ in range(n_steps):
        film.step_into(buffer)
    check_all_sequences(buffer, film)
    if optimized and layout != "vector":
        assert all(store.frame_stack in (1, frame_stack) for store in buffer.stores.values())
    for wanted in {1, rows // 2, rows * n_envs, rows * n_envs + 1}:
        check_latest(buffer, film, wanted)
    copy = pickle.loads(pickle.dumps(buffer))
    check_all_sequences(copy, film)
    check_latest(copy, film, rows)


def plain_buffer(n_envs: int = 1, rows: int = 3, **arguments: Any) -> OptionReplayBuffer:
    """A buffer of numbers, with one source and two actions."""
    space = spaces.Box(0.0, 99.0, (1,), np.float32)
    return OptionReplayBuffer(rows * n_envs, space, spaces.Discrete(2), "cpu", n_envs, n_sources=1, **arguments)


def numbers(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


def test_latest_by_hand() -> None:
    """Two environments, four steps of which three fit: a truncation, a terminal state, and one that goes on."""
    buffer, timeout = plain_buffer(n_envs=2), {"TimeLimit.truncated": True}
    steps: list[tuple[np.ndarray, np.ndarray, list[bool], list[dict[str, Any]]]] = [
        # Where from, where to, which ended
        (numbers(0, 10), numbers(1, 11), [False, False], [{}, {}]),
        (numbers(1, 11), numbers(2, 12), [True, False], [timeout, {}]),
        (numbers(5, 12), numbers(6, 13), [False, True], [{}, {}]),
        (numbers(6, 20), numbers(7, 21), [False, False], [{}, {}]),
    ]
    for t, (before, after, dones, infos) in enumerate(steps):
        buffer.add(
            before,
            after,
            np.array([0, 1]),
            np.array([t, -t]),
            np.array(dones),
            infos,
            log_probs=np.array([-0.5, -t]),
            option_actions=np.array([[1], [1]]),
        )
    data = buffer.latest(6)
    assert isinstance(data.observations, th.Tensor)
    assert isinstance(data.ended, th.Tensor)
    assert data.observations.flatten().tolist() == [1, 5, 6, 11, 12, 20]
    assert data.rewards.tolist() == [1, 2, 3, -1, -2, -3]
    # A truncated episode is over and goes on as far as its value is concerned
    assert data.dones.tolist() == [False, False, False, False, True, False]
    assert data.last_steps.tolist() == [True, False, True, False, True, True]
    assert data.ended.flatten().tolist() == [2, 7, 13, 21]
    # The source would have taken action 1, as the second environment did
    assert data.option_actions.tolist() == [[1]] * 6
    assert data.actions.tolist() == [0] * 3 + [1] * 3
    assert data.log_probs.tolist() == [-0.5, -0.5, -0.5, -1.0, -2.0, -3.0]
    # More than there are, and those of the last row alone
    assert buffer.latest(99).rewards.tolist() == data.rewards.tolist()
    assert buffer.latest(1).rewards.tolist() == [3, -3]
    # Without the one in the middle of the first environment, what came before it has no successor there
    buffer.log_probs[buffer.rewards == 2] = np.nan
    data = buffer.latest(6)
    assert data.rewards.tolist() == [1, 3, -1, -2, -3]
    assert data.last_steps.tolist() == [True, True, False, True, True]


def test_latest_looks_further_back_where_little_is_known() -> None:
    buffer = plain_buffer(rows=40)
    for step in range(40):
        known = np.array([-0.5 if step in (3, 20, 21) else np.nan])
        nothing = np.zeros(1, dtype=int)
        buffer.add(numbers(step), numbers(step + 1), nothing, np.array([step]), nothing > 0, [{}], log_probs=known)
    assert buffer.latest(2).rewards.tolist() == [20, 21]
    assert buffer.latest(3).rewards.tolist() == buffer.latest(99).rewards.tolist() == [3, 20, 21]
    assert buffer.latest(99).last_steps.tolist() == [True, False, True]


def test_latest_in_the_units_of_a_normalized_environment() -> None:
    env = VecNormalize(make_vec_env(Corridor, n_envs=2, seed=0), clip_reward=1e3)
    env.reset()
    statistics: Any = env.obs_rms
    statistics.mean, statistics.var, env.ret_rms.var = np.full(10, 0.5), np.full(10, 4.0), np.array(0.25)
    buffer = OptionReplayBuffer(20, env.observation_space, env.action_space, "cpu", 2)  # type: ignore[arg-type]
    paid, certain = np.array([1.0, 2.0]), np.zeros(2)
    buffer.add(
        np.zeros((2, 10)), np.ones((2, 10)), np.zeros(2, int), paid, np.zeros(2, bool), [{}, {}], log_probs=certain
    )
    data = buffer.latest(5, env)
    for found, expected in ((data.observations, [[-0.25] * 10] * 2), (data.ended, [[0.25] * 10] * 2)):
        assert isinstance(found, th.Tensor)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)
    np.testing.assert_allclose(data.rewards.numpy(), [2.0, 4.0], rtol=1e-4)


def test_a_step_without_its_options() -> None:
    """As SB3's own ``add``: the primitive option took the action, and what the source does is not known."""
    buffer = plain_buffer()
    buffer.add(numbers(0), numbers(1), np.array([1]), np.zeros(1), np.zeros(1, bool), [{}])
    data = buffer.get_sequences(np.zeros(1, int), np.zeros(1, int))
    assert data.options.item() == 2
    assert data.agreements.tolist() == data.learned.tolist() == [[[False, False, True]]]
    assert data.option_actions.tolist() == [[-1], [-1]]
    # Nor how likely that was
    assert len(buffer.latest(1).log_probs) == 0


def test_samples_are_drawn_by_the_generator_of_the_buffer() -> None:
    """Nothing that others draw in the meantime changes them."""

    def places(seed: int, others: int) -> np.ndarray:
        buffer = plain_buffer(rows=50, prioritized_share=0.5)
        buffer.rng = np.random.default_rng(seed)
        for step in range(50):
            buffer.add(numbers(step), numbers(step + 1), np.array([0]), np.zeros(1), np.zeros(1, bool), [{}])
        np.random.seed(others)
        return buffer.sample(32).places

    np.testing.assert_array_equal(places(seed=0, others=0), places(seed=0, others=1))
    assert (places(seed=0, others=0) != places(seed=1, others=0)).any()


@pytest.mark.parametrize("optimized", [False, True])
def test_steps_after_loading_go_on_where_they_stopped(optimized: bool) -> None:
    film = Film("first", n_envs=2, frame_stack=3, seed=0)
    buffer = OptionReplayBuffer(
        20, film.space, spaces.Discrete(N_ACTIONS), "cpu", 2, optimize_memory_usage=optimized, n_sources=N_SOURCES
    )
    for _ in range(15):
        film.step_into(buffer)
    buffer = pickle.loads(pickle.dumps(buffer))
    for _ in range(4):
        film.step_into(buffer)
    check_all_sequences(buffer, film)


def test_reset_forgets() -> None:
    film = Film("first", n_envs=1, frame_stack=2, seed=0)
    buffer = OptionReplayBuffer(
        7, film.space, spaces.Discrete(N_ACTIONS), "cpu", 1, optimize_memory_usage=True, n_sources=N_SOURCES
    )
    for _ in range(10):
        film.step_into(buffer)
    buffer.reset()
    assert buffer.size() == 0
    film.steps = [[]]
    for _ in range(5):
        film.step_into(buffer)
    check_all_sequences(buffer, film)


def test_timeouts_end_the_value_when_they_are_not_handled() -> None:
    film = Film("vector", n_envs=1, frame_stack=1, seed=3)
    buffer = OptionReplayBuffer(
        40, film.space, spaces.Discrete(N_ACTIONS), "cpu", handle_timeout_termination=False, n_sources=N_SOURCES
    )
    for _ in range(40):
        film.step_into(buffer)
    dones = buffer.get_sequences(np.arange(40), np.zeros(40, dtype=int)).dones[0].tolist()
    assert dones == [step.done for step in film.steps[0]]
    assert any(step.truncated for step in film.steps[0])


def test_frames_are_stored_once() -> None:
    film = Film("first", n_envs=1, frame_stack=4, seed=0)
    film.rng = np.random.default_rng(1)
    store = ObservationStore(100, 1, film.space, frame_stack=4)
    stack = film.start()
    for _ in range(100):
        following = [*stack[1:], film.frame()]
        store.add(np.stack(stack)[None], np.stack(following)[None])
        stack = following
    assert store.frames.get(np.arange(103)).nbytes == 103 * SIDE * SIDE
    # Only the first three stacks contain frames from before the first row
    assert np.count_nonzero(store.stack_slots >= 0) == 3
    assert np.count_nonzero(store.successor_slots >= 0) == 0


def test_images_that_are_no_stacks_are_stored_whole() -> None:
    rng = np.random.default_rng(0)
    space = spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)
    buffer = OptionReplayBuffer(
        10, space, spaces.Discrete(N_ACTIONS), "cpu", optimize_memory_usage=True, n_sources=N_SOURCES
    )
    images = rng.integers(255, size=(2, 1, 3, SIDE, SIDE), dtype=np.uint8)
    buffer.add(images[0], images[1], np.zeros(1, int), np.zeros(1), np.zeros(1, bool), [{}])
    assert buffer.stores[None].frame_stack == 1


def test_stacks_of_colour_images_are_detected() -> None:
    frames = np.random.default_rng(0).integers(255, size=(4, 3, SIDE, SIDE), dtype=np.uint8)
    first, second = np.concatenate(frames[:3])[None], np.concatenate(frames[1:])[None]
    assert detected_frame_stack(first, second) == 3
    assert detected_frame_stack(np.moveaxis(first, 1, -1), np.moveaxis(second, 1, -1)) == 3
    assert detected_frame_stack(second, first) == 1


def test_declared_stack_must_divide_the_channels() -> None:
    space = spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)
    with pytest.raises(ValueError, match=r"\(3, 16, 16\) are not a stack of 2 frames: pass frame_stack=1"):
        OptionReplayBuffer(10, space, spaces.Discrete(N_ACTIONS), "cpu", frame_stack=2)


def test_compression_of_what_would_grow_is_refused() -> None:
    with pytest.raises(ValueError, match="is for images"):
        OptionReplayBuffer(10, spaces.Box(-1, 1, (4,)), spaces.Discrete(N_ACTIONS), "cpu", compression="zlib")
    image = spaces.Box(0, 255, (2, SIDE, SIDE), np.uint8)
    with pytest.raises(ValueError, match="must be None"):
        OptionReplayBuffer(10, image, spaces.Discrete(N_ACTIONS), "cpu", compression="rar")  # type: ignore[arg-type]


def test_buffer_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "available_memory", lambda: 8_000_000_000)
    space = spaces.Box(0, 255, (2, 84, 84), np.uint8)
    message = r"1,000,000 transitions takes 14\.1 GB .* 8\.0 GB are available: pass a smaller buffer_size \(up to 565,"
    with pytest.warns(UserWarning, match=message):
        OptionReplayBuffer(1_000_000, space, spaces.Discrete(N_ACTIONS), "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OptionReplayBuffer(1_000_000, space, spaces.Discrete(N_ACTIONS), "cpu", optimize_memory_usage=True)
        OptionReplayBuffer(500_000, space, spaces.Discrete(N_ACTIONS), "cpu")


@pytest.mark.parametrize(
    "arguments", [{"optimize_memory_usage": True}, {"replay_buffer_kwargs": {"compression": "zlib"}}]
)
def test_learning_is_the_same_however_observations_are_stored(arguments: dict[str, Any]) -> None:
    def trained(**arguments: Any) -> CAPS:
        env = VecFrameStack(make_vec_env(lambda: Corridor("image", horizon=8), n_envs=2, seed=0), 2)
        model = CAPS(
            "CnnPolicy",
            env,
            seed=0,
            source_policies=[go_right],
            buffer_size=40,
            learning_starts=10,
            batch_size=8,
            **arguments,
        )
        return model.learn(70)

    plain, special = trained(), trained(**arguments)
    if "optimize_memory_usage" in arguments:
        assert special.replay_buffer.stores[None].frame_stack == 2
    for ours, theirs in zip(plain.policy.parameters(), special.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)


def test_two_runs_of_learn_leave_no_false_successor() -> None:
    """SB3 resets the environments between two runs: the last step of the first has its own successor."""
    model = CAPS("MlpPolicy", Corridor(horizon=50), buffer_size=200, train_freq=1, learning_starts=1000, seed=0)
    model.learn(5)
    expected = model._last_obs
    model.learn(5)
    data = model.replay_buffer.get_sequences(np.array([4]), np.array([0]))
    assert isinstance(data.observations, th.Tensor)
    np.testing.assert_array_equal(data.observations[1:2].numpy(), expected)
