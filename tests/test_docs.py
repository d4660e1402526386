"""No command in the documentation is stale, and the tool that says so sees one that is."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_caps import CAPS
from sb3_caps.reuse.episodes import Behaviour

ROOT = Path(__file__).resolve().parent.parent


def load() -> ModuleType:
    """The tool, which is in no package."""
    spec = importlib.util.spec_from_file_location("check_docs", ROOT / "docs" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_docs"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


tool = load()


def check(text: str, folder: Path, run: bool = False) -> str | None:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    found: str | None = tool.check(page, run)
    return found


@pytest.mark.parametrize("page", tool.pages(), ids=lambda page: page.name)
def test_every_command_parses(page: Path) -> None:
    assert tool.check(page, run=False) is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```bash\nsb3-caps plot logs --no-such-option\n```", "unrecognized arguments: --no-such-option"),
        ("```\nsb3-caps reproduce grid --figur 99 # a comment\n```", "page.md:2"),
        ("Run `sb3-caps nonsense` now.", "invalid choice: 'nonsense'"),
        ("```bash\nmake no-such-target\n```", "make no-such-target"),
        ("```sh\npython examples/no_such.py\n```", "examples/no_such.py does not exist"),
        ("```python\ndef broken(:\n```", "no Python"),
        ("<!-- check-docs: skip, no such word -->\n```python\n1\n```", "line 1: write parse, page, file or before"),
        ("<!-- check-docs: parse -->\n```python\n1\n```", "and why"),
        ("```\nit's no command\n```", "```text"),
    ],
)
def test_what_is_stale_is_seen(text: str, error: str, tmp_path: Path) -> None:
    assert error in (check(text, tmp_path) or "")


@pytest.mark.parametrize(
    "text",
    [
        "In a sentence `sb3-caps reproduce` and `sb3-caps plot …` leave arguments out.",
        "```\n$ sb3-caps plot logs > log.txt 2>&1\noutput that isn't a command\n```",
        "```text\nit's a tree\n```",
        "```bash\nfor x in 1 2; do sb3-caps plot logs; done\n```",
    ],
)
def test_what_is_right_passes(text: str, tmp_path: Path) -> None:
    assert check(text, tmp_path) is None


def test_blocks_run_in_order_in_one_folder(tmp_path: Path) -> None:
    text = """
<!-- check-docs: file helper.py -->
```python
NUMBER = 42
```
<!-- check-docs: before
from pathlib import Path
-->
```python
from helper import NUMBER
Path("number.txt").write_text(str(NUMBER))
```
```bash
test "$(cat number.txt)" = {}
```
<!-- check-docs: parse, it would fail -->
```bash
exit 3
```
"""
    assert check(text.format(42), tmp_path, run=True) is None
    failed = check(text.format(43), tmp_path, run=True)
    assert failed is not None
    assert "exit code 1" in failed
    assert "page.md:14" in failed


def test_the_first_example_of_the_readme_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands there, beside its sources and DQN."""
    monkeypatch.chdir(tmp_path)
    code = (ROOT / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    model, env = names["model"], names["env"]
    dqn = DQN("MlpPolicy", env, learning_rate=1e-3, target_update_interval=500, seed=0).learn(20_000)
    sources = [CAPS("MlpPolicy", env, source_policies=[names[name]]) for name in ("right", "down")]
    for source in sources:
        source.gate.controller = Behaviour(source.options.source_names[0], is_source=True)
    returns = [evaluate_policy(each, env, 20, warn=False)[0] for each in (*sources, dqn, model)]
    assert returns == [0.0, 0.0, 0.0, 1.0]
    assert evaluate_policy(CAPS.load(tmp_path / "caps_lake"), env, 20, warn=False)[0] == 1.0
