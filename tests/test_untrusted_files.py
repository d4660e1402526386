"""Exports from anybody: whatever a file holds, loading it runs nothing, and takes no more memory than it has bytes."""

import base64
import copy
import io
import json
import os
import pickle
import random
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps import (
    CAPS,
    CUP,
    IBRL,
    OPSTL,
    PRQL,
    ContinuousCAPS,
    JumpStart,
    PiecewiseLinear,
    PolicyLibrary,
    QDagger,
    as_source,
    export_source,
)
from sb3_caps.files.schema import ARGUMENTS, LARGEST_BUFFER
from sb3_caps.reuse.episodes import Behaviour
from tests.soak import times
from tests.toy_box import ToyBox
from tests.toy_world import LENGTH, Corridor

OBSERVATIONS, STARTS = np.eye(LENGTH, dtype=np.float32), np.ones(LENGTH, dtype=bool)
STATUS, PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RAN: list[str] = []


def explode(*_: Any) -> int:
    RAN.append("payload")
    return 1


class Bomb:
    """Which goes off where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return explode, ()


PICKLED = base64.b64encode(pickle.dumps(Bomb())).decode()
# As SB3 marks what it unpickles, and others do
PAYLOAD = {":type:": "<class 'int'>", ":serialized:": PICKLED}
MARKS: list[Any] = [
    PAYLOAD,
    {":serialized:": PICKLED},
    [PAYLOAD],
    {"initial": PAYLOAD, "target": PAYLOAD},
    {"py/reduce": [{"py/function": f"{__name__}.explode"}, {"py/tuple": []}]},
    {"__reduce__": [f"{__name__}:explode", []]},
    {"schedule": f"{__name__}:explode"},
    f"{__name__}:explode",
    f"!!python/object/apply:{__name__}.explode []",
    f"__import__('{__name__}').explode()",
]

# What nothing but code of a file would do while it is loaded
FORBIDDEN = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "os.remove")
_watching: list[bool] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event in FORBIDDEN or event.startswith("socket."):
        RAN.append(event)
    elif event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        RAN.append(f"open {arguments[0]}")


# A hook stays for as long as the process
sys.addaudithook(_watch)


@contextmanager
def canary() -> Iterator[None]:
    """Says whether anything ran."""
    RAN.clear()
    _watching.append(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _watching.clear()
        assert not RAN, f"this ran: {RAN}"


def test_the_canary_sings() -> None:
    with pytest.raises(AssertionError, match=r"pickle.find_class.*payload"), canary():
        pickle.loads(base64.b64decode(PICKLED))
    with pytest.raises(AssertionError, match=r"open /dev/null"), canary(), open(os.devnull, "w"):
        pass


def parts(file: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """The description and the arrays of an export."""
    with np.load(file) as found:
        arrays = dict(found)
    return json.loads(arrays.pop("description").item()), arrays


def write(file: Path, content: Any, arrays: dict[str, np.ndarray]) -> Path:
    """An export with a description of anybody's."""
    everything: dict[str, Any] = {"description": np.array(content if isinstance(content, str) else json.dumps(content))}
    np.savez(file, **everything | arrays)
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With exports: of a model in which everything is that may be, of small ones, and of a source."""
    folder = tmp_path_factory.mktemp("exports")
    small: dict[str, Any] = {"buffer_size": 100, "batch_size": 16, "learning_starts": 10}
    small["policy_kwargs"] = {"net_arch": [4]}
    normalized = VecNormalize(make_vec_env(Corridor, n_envs=2, seed=0))
    ppo = PPO("MlpPolicy", normalized, seed=1, n_steps=20, batch_size=20, policy_kwargs={"net_arch": {"pi": [3]}})
    dqn = DQN("MlpPolicy", Corridor(), buffer_size=10, policy_kwargs={"net_arch": [4]})
    inner = CAPS("MlpPolicy", Corridor(), source_policies=[dqn], **small)
    model = CAPS(
        "MlpPolicy",
        VecNormalize(make_vec_env(Corridor, n_envs=1, seed=0)),
        source_policies=[ppo, inner],
        learning_rate=PiecewiseLinear([(0, 1e-3), (50, 1e-4)]),
        exploration_schedule=PiecewiseLinear([(0, 1.0), (50, 0.1)]),
        replay_buffer_kwargs={"prioritized_share": 0.25},
        termination_kwargs={"initial": 0.4},
        actor_kwargs={"interval": 64},
        selection_kwargs={"memory": 0.3},
        seed=0,
        **small,
    ).learn(150)
    model.export(folder / "model")
    export_source(ppo, folder / "source")
    CAPS("MlpPolicy", Corridor(), source_policies=[dqn], seed=0, **small).learn(50).export(folder / "small")
    sac = SAC("MlpPolicy", ToyBox(), buffer_size=10, policy_kwargs={"net_arch": [4]})
    small["policy_kwargs"] = {"net_arch": [4]}
    ContinuousCAPS("MlpPolicy", ToyBox(), source_policies=[sac], seed=0, **small).learn(50).export(
        folder / "continuous"
    )
    return folder


def load(file: Path) -> CAPS:
    return CAPS.load(file, trust=False)


def source(file: Path) -> Any:
    return as_source(file, trust=False)


LOADERS: list[Callable[[Path], Any]] = [load, source]


def refused(file: Path, message: str = "") -> None:
    """In every way, and by name; trust in it changes nothing."""
    for loader in (*LOADERS, CAPS.load):
        with canary(), pytest.raises(ValueError, match=message) as error:
            loader(file)
        assert str(file) in str(error.value)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_no_argument_of_a_model_is_unpickled(argument: str, folder: Path, tmp_path: Path) -> None:
    content, arrays = parts(folder / "model.npz")
    content["model"]["arguments"][argument] = PAYLOAD
    refused(write(tmp_path / "model.npz", content, arrays), f"model/arguments/{argument}")


@pytest.mark.parametrize("group", [argument for argument in ARGUMENTS if argument.endswith("_kwargs")])
def test_nothing_within_an_argument_is_unpickled(group: str, folder: Path, tmp_path: Path) -> None:
    content, arrays = parts(folder / "model.npz")
    given = content["model"]["arguments"][group]
    assert given
    for name in (*given, "new"):
        content["model"]["arguments"][group] = given | {name: PAYLOAD}
        refused(write(tmp_path / "model.npz", content, arrays), f"model/arguments/{group}/{name}")


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value of a description is, for each of them at any depth."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield from places(part, (*at, key))


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[int(key) if isinstance(value, list) else key]
    return value


def replaced(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    content = copy.deepcopy(content)
    at(content, place[:-1])[place[-1]] = value
    return content


@pytest.mark.parametrize("name", ["model", "source"])
def test_no_value_at_any_depth_may_be_code(name: str, folder: Path, tmp_path: Path) -> None:
    content, arrays = parts(folder / f"{name}.npz")
    found = [place for place in places(content) if place]
    assert len(found) > (150 if name == "model" else 15)
    rng = random.Random(0)
    for place in found:
        file = write(tmp_path / "file.npz", replaced(content, place, PAYLOAD), arrays)
        with canary(), pytest.raises(ValueError, match="is damaged, or no export") as error:
            source(file)
        if place not in (("format",), ("arrays",)):
            assert "/".join(map(str, place)) in str(error.value)
        # A field that is not known is refused, and so are the marks of others
        if isinstance(at(content, place), dict):
            changed = replaced(content, (*place, "made_up"), rng.choice(MARKS))
            refused(write(tmp_path / "file.npz", changed, arrays))


@pytest.mark.parametrize("mark", MARKS, ids=str)
def test_marks_of_code(mark: Any, folder: Path, tmp_path: Path) -> None:
    content, arrays = parts(folder / "model.npz")
    for argument in ("learning_rate", "verbose", "termination_kwargs", "seed", "exploration"):
        place = ("model", "arguments", argument)
        refused(write(tmp_path / "file.npz", replaced(content, place, mark), arrays), f"model/arguments/{argument}")


@pytest.mark.parametrize(
    ("place", "value", "accepted"),
    [
        ("arguments/verbose", 3, "an integer from 0 to 2, not 3"),
        ("arguments/verbose", True, "an integer from 0 to 2, not True"),
        ("arguments/gamma", "0.5", "a finite number from 0 to 1, not '0.5'"),
        ("arguments/max_grad_norm", 10**400, "a finite number of at least 0, not 1000"),
        ("arguments/seed", -1, "an integer from 0 to 4294967295, or null, not -1"),
        ("arguments/train_freq", [1, "day"], "one of step, episode, not 'day'"),
        ("arguments/tensorboard_log", "/elsewhere", "is not known"),
        ("arguments/device", "cuda", "is not known"),
        ("arguments/source_policies", ["os:system"], "is not known"),
        ("arguments/env", "os:system", "is not known"),
        ("arguments/replay_buffer_kwargs/compression", "lz4", "one of zlib, or null, not 'lz4'"),
        ("arguments/actor_kwargs", {"clip_range": None}, "a finite number, not None"),
        ("arguments/learning_rate", {"schedule": "Mine"}, "a finite number of at least 0, or an object whose schedule"),
        ("algorithm", "DQN", "one of CAPS, ContinuousCAPS, not 'DQN'"),
        ("policy/kind", "os:system", "one of dqn, actor-critic, sac, td3, caps, continuous, not 'os:system'"),
        ("policy/activation_fn", "Module", "one of ReLU, Tanh"),
        ("policy/features_extractor", "os:system", "one of FlattenExtractor, NatureCNN"),
        ("policy/arguments/net_arch", [4] * 33, "a list of up to 32"),
        ("policy/arguments/optimizer_class", "SGD", "is not known"),
        ("policy/gate/controller/name", "\x1b[2J", "a name of 1 to 1000 printable characters"),
        ("policy/gate/controller/name", "x" * 1001, "a name of 1 to 1000 printable characters"),
        ("policy/gate/controller", {"name": "nobody", "is_source": True}, r"one of \['ppo', 'caps'\], not nobody"),
        ("progress/num_timesteps", -1, "an integer of at least 0"),
        ("use/steps", [1], "5 numbers, one for each option"),
        ("selector/evidence", {"ppo": {"n": 1}}, "an object with n, mean, squares, latest, recent"),
        (
            "selector/evidence",
            {"ppo": {"n": 1, "mean": 1e200, "squares": 0, "latest": None, "recent": None}},
            r"ppo/mean must be a finite number from -1e\+100 to 1e\+100, not 1e\+200",
        ),
        ("os:system", {}, "is not known"),
    ],
)
def test_what_is_accepted_is_said(place: str, value: Any, accepted: str, folder: Path, tmp_path: Path) -> None:
    content, arrays = parts(folder / "model.npz")
    changed = replaced(content, ("model", *place.split("/")), value)
    file = write(tmp_path / "model.npz", changed, arrays)
    with canary(), pytest.raises(ValueError, match=f"{re.escape(place)}.*{accepted}"):
        load(file)


def test_texts_that_are_no_description(folder: Path, tmp_path: Path) -> None:
    content, arrays = parts(folder / "model.npz")
    text = json.dumps(content)
    seed, head = '"seed": 0', f'{{"format": "{content["format"]}", "arrays": {len(arrays)}'
    assert seed in text
    for changed, message in (
        (text.replace(seed, '"seed": NaN'), "NaN is not a finite number"),
        (text.replace(seed, '"seed": -Infinity'), "-Infinity is not a finite number"),
        (text.replace(seed, f"{seed}, {seed}"), "a name is there twice among"),
        (text.replace(seed, f'"seed": {"9" * 5000}'), "is damaged"),
        (f'{head}, "model": {"[" * 100_000}', "RecursionError"),
        (f'{head}, "model": {"[" * 900}{"]" * 900}}}', "must be an object"),
        (f'{head}, "model": {{}}, "source": {{}}}}', "a source or a model, not model, source"),
        (f"{head}}}", "a source or a model, not nothing"),
        (text.replace("export 8", "export 7"), "it is 'sb3_caps export 7', and this version reads 'sb3_caps export 8'"),
        ('{"model": 1}', "and this version reads"),
        ("", "and this version reads"),
    ):
        refused(write(tmp_path / "file.npz", changed, arrays), message)
    nested = content["model"]["policy"]["options"]["sources"][1]
    for _ in range(2000):
        outer = copy.copy(nested)
        outer["policy"] = {**nested["policy"], "options": {**nested["policy"]["options"], "sources": [nested]}}
        nested = outer
    changed = copy.deepcopy(content)
    changed["model"]["policy"]["options"]["sources"] = [nested]
    sys.setrecursionlimit(100_000)
    try:
        deep = json.dumps(changed)
    finally:
        sys.setrecursionlimit(1000)
    refused(write(tmp_path / "file.npz", deep, arrays), "RecursionError")


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(file: Path, content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return file


def npy(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


WEIGHT = "model/q_net.q_net.0.weight.npy"


def test_arrays_are_numbers(folder: Path, tmp_path: Path) -> None:
    whole = members(folder / "model.npz")
    objects = io.BytesIO()
    np.save(objects, np.array([Bomb()], dtype=object), allow_pickle=True)
    shape = "'fortran_order': False, 'shape'"
    for data in (
        objects.getvalue(),
        pickle.dumps(Bomb()),
        npy(f"{{'descr': '|O', {shape}: (4, 10), }}\n", pickle.dumps(Bomb())),
        npy(f"{{'descr': __import__('{__name__}').explode(), {shape}: (), }}\n"),
        npy("-" * 60_000 + "1\n"),
        npy("(" * 60_000 + "\n"),
        npy(f"{{'descr': '<f4', {shape}: ({'9' * 50}, {'9' * 50}), }}\n", bytes(160)),
        npy(f"{{'descr': '<f4', {shape}: (-4, -10), }}\n", bytes(160)),
        npy(f"{{'descr': '<f4', {shape}: ({'1,' * 200} 40), }}\n", bytes(160)),
        npy(f"{{'descr': '<f4', {shape}: (4, 10), }}\n", bytes(156)),
        npy(f"{{'descr': '<U1', {shape}: (4, 10), }}\n", bytes(160)),
        npy(f"{{'descr': [('a', '<f4')], {shape}: (4, 10), }}\n", bytes(160)),
        b"\x93NUMPY\x02\x00" + whole[WEIGHT][8:],
        whole[WEIGHT][:9],
        b"",
    ):
        refused(pack(tmp_path / "model.npz", whole | {WEIGHT: data}))
        refused(pack(tmp_path / "model.npz", whole | {"description.npy": data}))
    # What it would be otherwise
    data = npy(f"{{'descr': '<f4', {shape}: (4, 10), }}\n", np.ones(40, dtype="<f4").tobytes())
    loaded = load(pack(tmp_path / "model.npz", whole | {WEIGHT: data}))
    assert set(loaded.policy.state_dict()["q_net.q_net.0.weight"].flatten().tolist()) == {1.0}


def test_arrays_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    content, arrays = parts(folder / "model.npz")
    file = tmp_path / "file.npz"
    for name, array in list(arrays.items())[::3]:
        for changed in (array[..., None], np.zeros((7, 7), np.float32), array.astype(complex)):
            write(file, content, arrays | {name: changed})
            with canary(), pytest.raises(ValueError, match=r"file\.npz is damaged"):
                load(file)
        refused(
            write(file, content, {key: value for key, value in arrays.items() if key != name}),
            "are not those that it had",
        )
    refused(write(file, content, arrays | {"one more": np.zeros(1)}), "are not those that it had")


@contextmanager
def little_memory(most: float) -> Iterator[None]:
    """
    :param most: by how many MB the peak may be above what this process takes now
    """
    if not PEAK.exists():
        pytest.skip("the system does not say how much memory a process took")
    PEAK.write_text("5")
    before = peak()
    yield
    assert peak() - before < most


def peak() -> float:
    """:return: the most memory that this process ever took, in MB"""
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1000


def test_a_file_takes_no_more_memory_than_it_has_bytes(folder: Path, tmp_path: Path) -> None:
    whole, large = members(folder / "model.npz"), 100_000_000
    content, arrays = parts(folder / "model.npz")
    description = json.dumps({**content, "format": "sb3_caps export 6"})
    files = {}
    head = io.BytesIO()
    np.save(head, np.array(description))
    # In the format before, whose parts were compressed
    files["older.npz"] = {"description.npy": head.getvalue(), "model/weight.npy": bytes(large)}
    files["compressed.npz"] = whole | {"model/weight.npy": bytes(large)}
    files["description.npy"] = {"description.npy": whole["description.npy"] + bytes(large)}
    files["nothing.npz"] = {"description.npy": bytes(large)}
    files["other.zip"] = {"weights": bytes(large)}
    files["model.zip"] = {"data": bytes(large), "policy.pth": b""}
    for name, inside in files.items():
        file = pack(tmp_path / name, inside, zipfile.ZIP_DEFLATED)
        assert file.stat().st_size < 500_000
        with little_memory(20):
            refused(file)
    # One array that is there many times
    once = np.zeros(1_000_000, np.float32)
    with zipfile.ZipFile(write(tmp_path / "many.npz", content, arrays | {"x": once}), "a") as archive:
        member = archive.getinfo("x.npy")
        archive.filelist += [copy.copy(member) for _ in range(50)]
        archive.writestr("y.npy", b"")
    with little_memory(20):
        refused(tmp_path / "many.npz", "its parts are larger than the file")
    # A large one in another format is not read
    np.savez(tmp_path / "large.npz", description=np.array(description), weights=np.zeros(large, np.uint8))
    with little_memory(20):
        refused(tmp_path / "large.npz", "it is 'sb3_caps export 6'")


@pytest.mark.parametrize(
    ("name", "inside", "message"),
    [
        ("other.zip", ["weights"], "there is no data and no policy.pth in it"),
        ("model.zip", ["data", "policy.pth"], "its data is not JSON"),
        ("weights.pth", ["archive/data.pkl", "archive/data/0"], "a usable TorchScript file.*there is no code in it"),
        ("weights.pt", [], "a usable TorchScript file.*not a zip file"),
    ],
)
def test_of_other_formats_nothing_is_read_with_trust_either(
    name: str, inside: list[str], message: str, tmp_path: Path
) -> None:
    file, large = tmp_path / name, 100_000_000
    if inside:
        pack(file, {part: bytes(large) for part in inside}, zipfile.ZIP_DEFLATED)
    else:
        with file.open("wb") as opened:
            opened.truncate(large)
    with little_memory(20), pytest.raises(ValueError, match=message) as error:
        as_source(file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("policy/arguments/net_arch", [100_000, 100_000]),
        ("policy/arguments/net_arch", [100_000] * 32),
        ("policy/arguments/net_arch", [10**15]),
        ("policy/action_space", {"n": 10**12}),
        ("policy/action_space", {"n": 10**8}),
        ("policy/observation_space", {"n": 10**9}),
        ("policy/options/observation_space", {"n": 10**12}),
        ("policy/options/sources/0/policy/arguments/net_arch", {"pi": [10**6, 10**6]}),
        ("policy/options/sources/1/policy/action_space", {"n": 10**9}),
        ("policy/features_extractor_kwargs", {"features_dim": 10**12}),
        ("arguments/buffer_size", 10**12),
        ("arguments/buffer_size", LARGEST_BUFFER + 1),
    ],
)
def test_numbers_that_would_take_all_memory(place: str, value: Any, folder: Path, tmp_path: Path) -> None:
    content, arrays = parts(folder / "model.npz")
    changed = replaced(content, ("model", *place.split("/")), value)
    if "features_extractor_kwargs" in place:
        changed["model"]["policy"]["features_extractor"] = "NatureCNN"
    file = write(tmp_path / "model.npz", changed, arrays)
    with little_memory(20), canary(), pytest.raises(ValueError, match=r"model\.npz is damaged"):
        load(file)


ALGORITHMS: list[Any] = [CAPS, PRQL, OPSTL, JumpStart, QDagger, ContinuousCAPS, CUP, IBRL]


def test_without_trust_no_file_of_another_kind_is_opened(folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "run" / "best_model.zip"
    saved.parent.mkdir()
    DQN("MlpPolicy", Corridor(), buffer_size=10).save(saved)
    inside = members(saved)
    # The model would load, and its last number is code
    data = json.loads(inside["data"]) | {"verbose": PAYLOAD}
    pack(saved, inside | {"data": json.dumps(data).encode()})
    with pytest.raises(AssertionError, match="payload"), canary():
        DQN.load(saved)
    for name in ("vecnormalize.pkl", "policy.pth", "policy.pt", "model.onnx", "model.npz"):
        (saved.parent / name).write_bytes(base64.b64decode(PICKLED))
    files = [saved, saved.parent, *(saved.with_name(name) for name in ("policy.pth", "policy.pt", "model.onnx"))]
    for path in [*files, str(saved.with_suffix("")), f"{__name__}:explode"]:
        with canary(), pytest.raises(ValueError, match="with trust=False only what"):
            as_source(path, trust=False)
        with canary(), pytest.raises(ValueError, match="with trust=False only what"):
            CAPS.load(folder / "small.npz", trust=False, source_policies={"dqn": path})
    for algorithm in ALGORITHMS:
        with canary(), pytest.raises(ValueError, match="with trust=False only what"):
            algorithm.load(saved, trust=False)
        with canary(), saved.open("rb") as file, pytest.raises(ValueError, match="with trust=False only what"):
            algorithm.load(file, trust=False)
        if algorithm is not CAPS:
            with canary(), pytest.raises(ValueError, match=f"is not a {algorithm.__name__} model"):
                algorithm.load(folder / "small.npz", trust=False)


@pytest.mark.parametrize("trust", ["False", "no", 0, None])
def test_trust_is_true_or_false(trust: Any, folder: Path) -> None:
    """A word is true, whatever it says."""
    file = folder / "small.npz"
    uses: list[Callable[..., Any]] = [as_source, CAPS.load, PolicyLibrary]
    for use in uses:
        with pytest.raises(ValueError, match=f"trust must be True or False, not {trust!r}"):
            use(file, trust=trust)


@pytest.mark.parametrize("net_arch", [[1000] * 32, {"pi": [1000] * 32}])
def test_layers_take_no_more_than_the_file_has_numbers_in_all(net_arch: Any, folder: Path, tmp_path: Path) -> None:
    """Each of them would be filled by one large array of small numbers."""
    small = isinstance(net_arch, list)
    content, arrays = parts(folder / ("small.npz" if small else "source.npz"))
    place = ("model", "policy", "arguments", "net_arch") if small else ("source", "policy", "arguments", "net_arch")
    changed = replaced(replaced(content, place, net_arch), ("arrays",), len(arrays) + 1)
    file = write(tmp_path / "file.npz", changed, arrays | {"x": np.zeros(1_100_000, np.uint8)})
    with little_memory(30):
        for loader in LOADERS:
            with canary(), pytest.raises(ValueError, match=r"file\.npz"):
                loader(file)


def test_ones_own_sources_may_be_larger_than_the_file(folder: Path, tmp_path: Path) -> None:
    large = DQN("MlpPolicy", Corridor(), buffer_size=10, policy_kwargs={"net_arch": [256, 256]})
    large.save(tmp_path / "large")
    for trust, source in ((True, tmp_path / "large.zip"), (False, large)):
        model = CAPS.load(folder / "small.npz", source_policies=[source], trust=trust)
        policy: Any = model.source_policies[0].policy
        assert policy.q_net.net_arch == [256, 256]


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_not_tried(compression: int, folder: Path, tmp_path: Path) -> None:
    refused(pack(tmp_path / "file.npz", members(folder / "small.npz"), compression), "it is compressed")


def test_nothing_is_remembered_of_whom_nobody_knows(folder: Path, tmp_path: Path) -> None:
    content, arrays = parts(folder / "small.npz")
    known = content["model"]["selector"]["evidence"]["dqn"]
    for part in ("evidence", "rewards"):
        content["model"]["selector"][part]["a,b"] = known | {"mean": 1e6}
    selector: Any = load(write(tmp_path / "file.npz", content, arrays)).selector
    assert "a,b" not in {**selector.evidence, **selector.rewards}
    assert selector.of(Behaviour("dqn", is_source=True)).mean == known["mean"]
    assert selector.highest < 1e5


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(MARKS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
# A hundred thousand files with `make soak`, in two tests
FUZZ = settings(
    max_examples=times(250, 50_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NAMES = ["source", "small", "model", "continuous"]


@pytest.fixture(scope="module")
def exports(folder: Path) -> dict[str, dict[str, bytes]]:
    """The parts of each."""
    return {name: members(folder / f"{name}.npz") for name in NAMES}


def tried(file: Path, name: str, as_model: bool) -> None:
    """Refused by name, or loaded: then it acts. Nothing runs."""
    continuous = name == "continuous"
    algorithm: Any = ContinuousCAPS if continuous else CAPS
    seen = np.zeros((LENGTH, 2), np.float32) if continuous else OBSERVATIONS
    with canary():
        try:
            found = algorithm.load(file, trust=False) if as_model else source(file)
        except ValueError as error:
            message = str(error)
        else:
            message = str(file)
            if as_model:
                acts = found.predict(seen)[0]
            elif continuous:
                acts = found.box_actions(seen, None, STARTS, found.action_space)[0]
            else:
                acts = found.actions(seen, None, STARTS)[0]
            assert acts.shape == (LENGTH, 2) if continuous else np.isin(acts, [0, 1, 2]).all()
    assert str(file) in message


@FUZZ
@given(data=st.data(), name=st.sampled_from(NAMES), as_model=st.booleans())
def test_any_structure(
    data: st.DataObject, name: str, as_model: bool, folder: Path, exports: dict[str, dict[str, bytes]]
) -> None:
    content = json.loads(np.load(io.BytesIO(exports[name]["description.npy"])).item())
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(places(content))[1:]
        place = data.draw(st.sampled_from(found))
        how = data.draw(st.sampled_from(["replace", "replace", "add", "remove", "swap"]))
        inside = at(content, place[:-1])
        if how == "remove":
            del inside[place[-1]]
        elif how == "swap":
            inside[place[-1]] = copy.deepcopy(at(content, data.draw(st.sampled_from(found))))
        elif how == "add" and isinstance(inside, dict):
            inside[data.draw(st.text(max_size=8))] = copy.deepcopy(data.draw(JSON))
        else:
            inside[place[-1]] = copy.deepcopy(data.draw(JSON))
    description = io.BytesIO()
    np.save(description, np.array(json.dumps(content)))
    tried(pack(folder / "fuzz.npz", exports[name] | {"description.npy": description.getvalue()}), name, as_model)


@FUZZ
@given(data=st.data(), name=st.sampled_from(NAMES), packed=st.booleans(), as_model=st.booleans())
def test_any_bytes(
    data: st.DataObject, name: str, packed: bool, as_model: bool, folder: Path, exports: dict[str, dict[str, bytes]]
) -> None:
    """Anywhere in a file, or within its parts: then their checksums are right."""
    inside = dict(exports[name]) if packed else {"": (folder / f"{name}.npz").read_bytes()}
    part = data.draw(st.sampled_from(list(inside)))
    content = bytearray(inside[part])
    for _ in range(data.draw(st.integers(1, 4))):
        # The headers of arrays, and the directory at the end of a file, more often than what is between
        start = data.draw(st.integers(0, 130) | st.integers(-130, -1) | st.integers(0, len(content))) % (
            len(content) + 1
        )
        n_old = data.draw(st.integers(0, 8) | st.integers(0, 500))
        new = data.draw(st.binary(max_size=8) | st.sampled_from([pickle.dumps(Bomb()), b"'|O'", b"\xff" * 8, bytes(8)]))
        content[start : start + n_old] = new
    inside[part] = bytes(content)
    changed = folder / "fuzz.npz"
    if packed:
        compression = data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
        pack(changed, inside, compression)
    else:
        changed.write_bytes(content)
    tried(changed, name, as_model)
