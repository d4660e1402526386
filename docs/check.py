"""
Runs the code blocks of README.md and the pages of docs/, so that no command in them goes stale: ``make check-docs``.

Python blocks of a page run one after the other in one namespace, shell blocks by bash, both in one empty folder, with
``learn`` cut to a thousand steps. What cannot run so is marked by a comment, which no reader sees::

    <!-- check-docs: parse, it takes an hour -->       the next block is only parsed: options, targets of make
    <!-- check-docs: page, its studies take hours -->  all blocks of this page are only parsed
    <!-- check-docs: file my_package.py -->            the next block is a file that later blocks import
    <!-- check-docs: before
    env = gym.make("CartPole-v1")
    -->                                                Python to run here, for what a block takes for granted

Commands within sentences, in backquotes, are parsed too.
"""

import argparse
import contextlib
import io
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
SHELLS = {"", "sh", "bash", "console"}
# Steps that ``learn`` takes at most, and seconds for a shell block and for a page
STEPS, BLOCK_SECONDS, PAGE_SECONDS = 1000, 300, 600
DIRECTIVE = re.compile(r"<!-- check-docs: (\w+)[,\s]*(.*?)\s*-->", re.DOTALL)
# A comment of ours, a fenced block, or code within a sentence
PIECE = re.compile(
    r"(?P<comment><!-- check-docs: .*?-->)|^(?P<fence>```+)(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=fence)[ \t]*$"
    r"|(?<!`)`(?P<inline>[^`\n]+)`(?!`)",
    re.DOTALL | re.MULTILINE,
)
COMMANDS = ("sb3-caps ", "make ", "python -m ", "python examples/", "python docs/")


@dataclass
class Block:
    """
    What is to be checked.

    :param line: where it begins
    :param kind: python, shell or file
    :param code: its text
    :param run: whether to run it, and not only to parse it
    :param name: of the file
    :param mention: whether it stands in a sentence, where arguments may be left out
    """

    line: int
    kind: str
    code: str
    run: bool
    name: str = ""
    mention: bool = False


class Stale(Exception):
    """What a page says does not work."""


def blocks_of(text: str) -> list[Block]:
    """
    :param text: a page in Markdown
    :return: its blocks, in order
    """
    blocks: list[Block] = []
    directive, words, whole_page = "", "", False
    for piece in PIECE.finditer(text):
        line = text.count("\n", 0, piece.start()) + 1
        if piece["comment"]:
            found = DIRECTIVE.fullmatch(piece["comment"])
            if found is None or found[1] not in ("parse", "page", "file", "before") or not found[2]:
                raise Stale(f"line {line}: write parse, page, file or before, and why or what, not {piece['comment']}")
            directive, words = found[1], found[2]
            whole_page |= directive == "page"
            if directive == "before":
                blocks.append(Block(line + 1, "python", words, run=not whole_page))
            if directive in ("page", "before"):
                directive = ""
        elif piece["inline"]:
            if piece["inline"].startswith(COMMANDS):
                blocks.append(Block(line, "shell", piece["inline"], run=False, mention=True))
        else:
            language, run = piece["language"].strip(), directive != "parse" and not whole_page
            if directive == "file":
                blocks.append(Block(line + 1, "file", piece["code"], run, words))
            elif language == "python":
                blocks.append(Block(line + 1, "python", piece["code"], run))
            elif language in SHELLS:
                blocks.append(Block(line + 1, "shell", _commands(piece["code"]), run))
            directive = ""
    return blocks


def _commands(code: str) -> str:
    """What is typed: all of it, or what follows a prompt where there is one."""
    lines = code.splitlines()
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return "\n".join(prompted or lines)


def simple_commands(code: str) -> Iterator[list[str]]:
    """
    :param code: shell
    :return: the words of each command, without assignments, redirections and keywords
    """
    lexer = shlex.shlex(code.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    words: list[str] = []
    try:
        found = [*lexer, ";"]
    except ValueError as error:
        raise Stale(f"no shell ({error}): write ```text over what is none") from error
    for word in found:
        if word in ("&&", "||", ";", "|", "&", ";;", "(", ")"):
            while words and (words[0] in ("do", "done", "then", "time") or re.fullmatch(r"\w+=.*", words[0])):
                words.pop(0)
            if words:
                yield words
            words = []
        else:
            words.append(word)


def parse(block: Block) -> None:
    """
    Check all that can be checked without running a block.

    :param block: raises ``Stale`` if it is wrong
    """
    if block.kind in ("python", "file"):
        try:
            compile(block.code, "block", "exec")
        except SyntaxError as error:
            raise Stale(f"no Python: {error}") from error
        return
    code = "\n".join(re.sub(r"(^|\s+)#.*$", "", line) for line in block.code.splitlines())
    for words in simple_commands(code):
        # Redirections, <placeholders> and shortened words end what can be checked
        ends = [i for i, word in enumerate(words) if re.match(r"\d?[<>]", word) or ("…" in word and word != "…")]
        words = words[: ends[0]] if ends else words
        _parse_command([word for word in words if word != "…"], block.mention)


def _parse_command(words: list[str], mention: bool) -> None:
    if words[0] == "sb3-caps":
        _parse_sb3_caps(words[1:], mention)
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for target in words[1:]:
            if "=" not in target and target not in targets:
                raise Stale(f"`make {target}` is not in the Makefile")
    elif words[0] == "python" and len(words) > 1:
        place = words[2].replace(".", "/") if words[1] == "-m" else words[1]
        ours = place.split("/")[0] in ("sb3_caps", "benchmarks", "examples", "docs", "tests")
        if ours and not any((ROOT / name).exists() for name in (place, f"{place}.py", f"{place}/__main__.py")):
            raise Stale(f"{place} does not exist")


class _Parsed(Exception):
    """The arguments of a command are right."""


def _parse_sb3_caps(argv: Sequence[str], mention: bool) -> None:
    from sb3_caps.commands import main

    original = argparse.ArgumentParser.parse_args

    def parse_only(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> argparse.Namespace:
        found = original(self, *args, **kwargs)
        # The first two only find the parser of what was asked for
        if self.prog in ("sb3-caps", "sb3-caps reproduce"):
            return found
        raise _Parsed

    errors = io.StringIO()
    with mock.patch.object(argparse.ArgumentParser, "parse_args", parse_only), contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(errors))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        # Runs need not be there yet
        stack.enter_context(mock.patch("sb3_caps.zoo.plots._check_runs"))
        # Relative imports of the working directory stay as they were
        stack.enter_context(mock.patch.object(sys, "path", list(sys.path)))
        try:
            code = main(list(argv))
        except _Parsed:
            return
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    error = errors.getvalue().strip()
    left_out = re.search(r"arguments are required|expected (at least )?one argument", error)
    if code and not (mention and left_out):
        raise Stale(f"`sb3-caps {shlex.join(argv)}`: {error.splitlines()[-1]}")


def cut_learning() -> None:
    """Let ``learn`` of every SB3 algorithm end after a thousand steps."""
    from stable_baselines3.common.base_class import BaseAlgorithm

    original: Callable[..., tuple[int, Any]] = BaseAlgorithm._setup_learn

    def setup_learn(self: BaseAlgorithm, total_timesteps: int, *args: Any, **kwargs: Any) -> tuple[int, Any]:
        return original(self, min(total_timesteps, STEPS), *args, **kwargs)

    BaseAlgorithm._setup_learn = setup_learn  # type: ignore[method-assign]


def run_page(page: Path) -> None:
    """
    Run the blocks of a page in the working directory.

    :param page: raises ``Stale`` where one fails
    """
    sys.path.insert(0, os.getcwd())
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if not block.run:
            continue
        if block.kind == "file":
            Path(block.name).write_text(block.code, encoding="utf-8")
        elif block.kind == "python":
            # Errors name the line of the page
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
        else:
            _run_shell(page, block)


def _run_shell(page: Path, block: Block) -> None:
    # The sb3-caps of this Python, cut like everything else
    tools = Path(tempfile.mkdtemp(prefix="tools"))
    start = f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r}); import check; check.cut_learning()"
    command = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{start}\nfrom sb3_caps.commands import main; '
    (tools / "sb3-caps").write_text(command + 'sys.exit(main())" "$@"\n')
    (tools / "sb3-caps").chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    try:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block.code],
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            timeout=BLOCK_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Stale(f"{page}:{block.line}: not done in {BLOCK_SECONDS} s: make it shorter, or mark it") from error
    if done.returncode:
        raise Stale(f"{page}:{block.line}: exit code {done.returncode}\n{block.code}")


def pages() -> list[Path]:
    """
    :return: README and the pages of the site
    """
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def check(page: Path, run: bool) -> str | None:
    """
    :param page: in Markdown
    :param run: whether to run what can be run, and not only to parse it
    :return: what is wrong, None if nothing is
    """
    try:
        blocks = blocks_of(page.read_text(encoding="utf-8"))
    except Stale as error:
        return f"{page}: {error}"
    for block in blocks:
        try:
            parse(block)
        except Stale as error:
            return f"{page}:{block.line}: {error}"
    if not (run and any(block.run for block in blocks)):
        return None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        # A fork has all imports already
        child = multiprocessing.get_context("fork").Process(target=_run_apart, args=(page, Path(folder), log))
        child.start()
        child.join(PAGE_SECONDS)
        if child.is_alive():
            child.kill()
            return f"{page}: not done in {PAGE_SECONDS} s"
        return None if child.exitcode == 0 else log.read_text(encoding="utf-8")[-4000:].strip()


def _run_apart(page: Path, folder: Path, log: Path) -> None:
    # Open until the process ends: what it prints last is the error
    sys.stdout = sys.stderr = file = log.open("w", encoding="utf-8", buffering=1)
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)
    os.environ.update(SDL_VIDEODRIVER="dummy", MPLBACKEND="Agg")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    (folder / "empty").mkdir()
    os.chdir(folder / "empty")
    run_page(page)


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: the arguments, those of the process by default
    :return: the exit code
    """
    parser = argparse.ArgumentParser(description="Run the code blocks of the documentation.")
    parser.add_argument("pages", nargs="*", type=Path, help="all by default")
    parser.add_argument("--parse", action="store_true", help="parse everything and run nothing")
    args = parser.parse_args(argv)
    if not args.parse:
        cut_learning()
    failed = 0
    for page in args.pages or pages():
        start = time.monotonic()
        error = check(page.resolve(), run=not args.parse)
        failed += error is not None
        result = "ok" if error is None else "FAILED"
        print(f"{result:6} {page.resolve().relative_to(ROOT)} {time.monotonic() - start:.0f} s", flush=True)
        if error:
            print(error)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
