"""What sources are called: not as anything else in logs, and so that tables and logs can be read."""

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.logger import configure

from sb3_caps import CAPS, as_source
from sb3_caps.caps.gate import BUILT_IN
from sb3_caps.reuse.selectors import LEARNED, RANDOM
from sb3_caps.sources.names import RESERVED, unique_names
from tests.toy_world import Corridor, go_left, go_right


def caps(source_policies: Any) -> CAPS:
    return CAPS("MlpPolicy", Corridor(), source_policies=source_policies, seed=0)


def named(function: Any, name: str) -> Any:
    """A function that is called so."""

    def act(observations: Any) -> Any:
        return function(observations)

    act.__name__ = name
    return act


def test_all_that_acts_besides_sources_has_a_name_of_its_own() -> None:
    assert {behaviour.name for behaviour in (*BUILT_IN, LEARNED, RANDOM)} <= RESERVED


@pytest.mark.parametrize("name", ["random", "learned", "peak actor"])
def test_reserved_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is what logs call something else: give the source policy another"):
        caps({name: go_right})
    # A name that nobody gave gets a number
    DQN("MlpPolicy", Corridor(), buffer_size=1).save(tmp_path / name)
    sources = [tmp_path / f"{name}.zip", named(go_right, name), as_source(go_left, name=f"{name}_2")]
    assert caps(sources).source_names == [
        f"{name}_3",
        f"{name}_4",
        f"{name}_2",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a,b", "a_b"),
        ("a\nb", "a_b"),
        ("a/b", "a_b"),
        ("a\r\n,/b", "a_b"),
        ("\ta\x7f", "_a_"),
        ("↑ a b", "↑ a b"),
        (r"$\frac$", r"_\frac_"),
    ],
)
def test_what_would_break_a_table(name: str, expected: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        # What the user did not name is escaped without a word
        warnings.simplefilter("error")
        assert unique_names([as_source(named(go_right, name))]) == [expected]
    given = as_source(go_right, name=name)
    if expected != name:
        with pytest.warns(
            UserWarning, match=r"is called '.*': names in tables and logs have no commas, slashes, dollars and"
        ):
            assert unique_names([given]) == [expected]
    model = CAPS("MlpPolicy", Corridor(), source_policies=[named(go_right, name), go_left], learning_starts=10)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(200, log_interval=1)
    assert model.source_names == [source.name for source in model.source_policies] == [expected, "go_left"]
    with (tmp_path / "progress.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert any(key.endswith(f"/{expected}") for key in header)
    assert {len(row) for row in rows} == {len(header)}


def test_what_two_sources_are_called() -> None:
    with (
        pytest.raises(ValueError, match="Two options are named 'a_b': give each source policy a name of its own"),
        pytest.warns(UserWarning, match="is called 'a_b'"),
    ):
        unique_names([as_source(go_right, name="a/b"), as_source(go_left, name="a_b")])
    assert unique_names([named_source("x"), named_source("x,"), named_source("x")], ["x"]) == ["x_2", "x_", "x_3"]


def named_source(name: str) -> Any:
    return as_source(named(go_right, name))


@pytest.mark.parametrize("name", ["", "  ", 3, b"a"])
def test_names_that_say_nothing(name: Any) -> None:
    with pytest.raises(ValueError, match="The name of a source policy must be a string that is not empty, not"):
        as_source(go_right, name=name)
    with pytest.raises(ValueError, match="The name of a source policy"):
        caps({name: go_right})


def test_a_dictionary_names_its_sources() -> None:
    dqn = DQN("MlpPolicy", Corridor(), buffer_size=1)
    sources = {"right": go_right, "fixed": dqn, "again": as_source(go_left, name="left")}
    model = caps(sources)
    assert model.source_names == ["right", "fixed", "again"]
    assert model.learn(20).num_timesteps == 20
    assert caps({}).source_names == []
    with pytest.raises(ValueError, match="Two options are named 'action_1'"):
        caps({"action_1": go_right})
