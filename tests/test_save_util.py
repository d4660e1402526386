"""Files are written whole or not at all, whoever else writes and whatever ends the writer."""

import io
import os
import pickle
import random
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sb3_caps.files.save_util import (
    atomic_write,
    is_running,
    partial_path,
    read_pickle,
    remove_leftovers,
    write_pickle,
)

# Writes half of a file, says so and waits to be killed
HALF_A_WRITER = """
import sys, time
from sb3_caps.files.save_util import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"new" * 1000)
    file.flush()
    print("half", flush=True)
    time.sleep(120)
"""
# Writes files of one letter as fast as it can
WRITER = """
import itertools, sys
from sb3_caps.files.save_util import atomic_write
print("ready", flush=True)
for letter in itertools.cycle(sys.argv[2].encode()):
    with atomic_write(sys.argv[1]) as file:
        for _ in range(50):
            file.write(bytes([letter]) * 1000)
"""


def start(code: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() in ("half", "ready")
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def write(path: Path | str, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "results" / "file.bin"
    write(file, b"old")

    def fail() -> None:
        with atomic_write(file) as opened:
            opened.write(b"half of")
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        fail()
    assert file.read_bytes() == b"old"
    assert os.listdir(file.parent) == ["file.bin"]


def test_an_open_file_is_written_to_and_a_suffix_is_added(tmp_path: Path) -> None:
    opened = io.BytesIO()
    with atomic_write(opened) as file:
        file.write(b"content")
    assert opened.getvalue() == b"content"
    for name in ("model", "other.zip", "dotted.name"):
        with atomic_write(str(tmp_path / name), suffix="zip") as file:
            file.write(b"content")
    assert sorted(os.listdir(tmp_path)) == ["dotted.name", "model.zip", "other.zip"]


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link, dangling = tmp_path / "elsewhere" / "target", tmp_path / "link", tmp_path / "dangling"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(Path("elsewhere") / "target")
    dangling.symlink_to(tmp_path / "not" / "yet")
    write(link, b"new")
    write(dangling, b"first")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert (tmp_path / "not" / "yet").read_bytes() == b"first"
    # A new file has the permissions that any new file has
    (tmp_path / "plain").touch()
    write(tmp_path / "new", b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["dangling", "elsewhere", "link", "new", "not", "plain"]


def test_two_writers_have_a_file_each_and_the_last_one_wins(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with atomic_write(file) as first:
        first.write(b"first")
        with atomic_write(file) as second:
            second.write(b"second, and longer")
        assert file.read_bytes() == b"second, and longer"
    assert file.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_writer_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write(file, b"old")
    killed, running = start(HALF_A_WRITER, file), start(HALF_A_WRITER, file)
    try:
        kill(killed)
        assert file.read_bytes() == b"old"
        assert len(os.listdir(tmp_path)) == 3
        # A folder, as checkpoints are, of a writer that is gone
        name = partial_path(tmp_path / "checkpoint").name.replace(f"-{os.getpid()}-", f"-{killed.pid}-")
        (tmp_path / name).mkdir()
        write(tmp_path / "another file", b"")
        # What is still being written stays
        (left,) = [name for name in os.listdir(tmp_path) if name.endswith(".partial")]
        assert f"-{running.pid}-" in left
    finally:
        kill(running)
    assert not is_running(running.pid)
    assert is_running(os.getpid())
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["another file", "file"]
    assert file.read_bytes() == b"old"


def test_writers_killed_at_random_moments_never_leave_half_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    moments = random.Random(0)
    for _ in range(6):
        writers = [start(WRITER, file, letters) for letters in ("ab", "cd")]
        deadline = time.monotonic() + 0.1 + 0.2 * moments.random()
        while time.monotonic() < deadline:
            if file.exists():
                content = file.read_bytes()
                assert (len(content), len(set(content))) == (50_000, 1)
        for writer in writers:
            kill(writer)
    write(tmp_path / "last", b"")
    assert sorted(os.listdir(tmp_path)) == ["file", "last"]


def test_a_checksum_that_cannot_be_read_hides_nothing(tmp_path: Path) -> None:
    file = tmp_path / "zeros.pkl"
    write_pickle(file, bytes(1000))
    content = bytearray(file.read_bytes())
    # One bit of the content, and one of the word that tells where the checksum is
    content[500] ^= 1
    content[-10] ^= 1
    file.write_bytes(content)
    assert pickle.loads(content) != bytes(1000)
    with pytest.raises(ValueError, match=r"zeros.pkl is damaged.*what follows its content is not a checksum"):
        read_pickle(file)
    # SB3 writes none
    file.write_bytes(pickle.dumps([1, 2]))
    assert read_pickle(file) == [1, 2]
