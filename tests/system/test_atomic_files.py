"""A file is there whole or not at all."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atat_zoo import UserError
from atat_zoo.experiment.runs import RunFolder, write_bytes, write_json, write_text
from atat_zoo.system.atomic_files import HOST, clean, making_folder, replacing, sync_folder, write_all
from tests.limited import full_disk
from tests.system.dying import dies


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def synced(monkeypatch):
    """Return what is synced, as it is."""
    places = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: places.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    return places


def test_a_file_is_written_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "file.txt"
    write_text(path, "ünïcode\n")
    assert path.read_bytes() == "ünïcode\n".encode()
    write_bytes(path, b"\0\xff")
    assert path.read_bytes() == b"\0\xff"
    write_json(path, {"a": [1, 2.5, None], "ü": True})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": [1, 2.5, None], "ü": True}
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert listing(path.parent) == ["file.txt"]


def broken_off(replacing, path, error):
    with replacing(path) as beside:
        (beside / "new" if beside.is_dir() else beside).write_text("half of the n")
        raise error


def test_a_link_stays_a_link_and_what_is_no_file_is_not_replaced(tmp_path):
    (tmp_path / "target").write_text("old")
    for name, target in (("link", "target"), ("one", "other"), ("other", "one")):
        (tmp_path / name).symlink_to(tmp_path / target)
    os.mkfifo(tmp_path / "pipe")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    for name, words in (
        ("pipe", "pipe is a device or a pipe, which cannot be replaced; name a file"),
        ("one", "one cannot be written: Too many levels of symbolic links; free some space"),
    ):
        with pytest.raises(UserError, match=words):
            write_text(tmp_path / name, "new")
    assert (tmp_path / "pipe").is_fifo()
    assert listing(tmp_path) == ["link", "one", "other", "pipe", "target"]


def test_unfinished_files_of_dead_processes_are_removed(tmp_path):
    running = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = [f".model.safetensors.{running.pid}@{HOST}.part", ".notes.part", "model.safetensors", f"a.1@{HOST}.part"]
    kept += [f".x.{ended.pid}@another.part", f".x.{ended.pid}.part"]  # of another host, and of who knows where
    gone = [f".model.safetensors.{ended.pid}", f".x.{os.getpid()}", f".x.{'9' * 30}", f".a\nb.{ended.pid}"]
    for name in (*kept, *(f"{name}@{HOST}.part" for name in gone)):
        (tmp_path / name).touch()
    (tmp_path / f".model.old.{ended.pid}@{HOST}.part" / "inside").mkdir(parents=True)
    clean(tmp_path)
    clean(tmp_path / "nowhere")
    assert listing(tmp_path) == sorted(kept)
    running.communicate(b"\n")


@pytest.mark.parametrize("name", ["file/b", "folder", "nothing"])
def test_what_the_file_system_refuses_is_a_sentence(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    path = tmp_path / name

    def write():
        with replacing(path) as beside:
            if name != "nothing":  # is written
                beside.touch()

    with pytest.raises(UserError) as caught:
        write()
    text = str(caught.value)
    assert text.startswith(f"{path} cannot be written: ")
    assert "choose a different folder" in text
    assert "\n" not in text
    assert not list(tmp_path.rglob("*.part"))


def test_a_full_disk_is_a_sentence_and_loses_nothing(tmp_path):
    folder = RunFolder(tmp_path / "run")
    write_bytes(folder.path / "file", b"old")

    def save(step, size, keep):
        with folder.writing_checkpoint(step, keep) as path:
            path.write_bytes(b"x" * size)

    def record():
        for step in range(1, 10_000):
            folder.append_metrics({"step": step})

    save(1, size=1000, keep=2)
    # A file may not grow beyond this many bytes: the write fails halfway.
    for attempt in (lambda: write_bytes(folder.path / "file", b"n" * 10_000), lambda: save(2, 10_000, keep=1), record):
        with full_disk(4096), pytest.raises(UserError, match=r"^[^\n]*free some space[^\n]*$"):
            attempt()
    assert (folder.path / "file").read_bytes() == b"old"
    assert folder.last_checkpoint().step == 1
    assert not list(folder.checkpoints.glob("*.part"))
    # The line that was cut off is left out, the others are there.
    steps = [line["step"] for line in folder.read_metrics()]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > 100


def test_a_file_and_its_folder_are_synced(tmp_path, synced):
    write_text(tmp_path / "file", "x")
    sync_folder(tmp_path)
    # First the file under its other name, then the folder with the new name.
    assert synced[0].endswith(".part")
    assert synced[1:] == [str(tmp_path)] * 2


FULL = "No space left on device"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, FULL), f"it cannot be written: {FULL}; free some"),
        (RuntimeError("I/O error: broken (os error 28)"), FULL),
        (KeyError("x"), "x"),
        (KeyboardInterrupt("x"), "x"),
    ],
)
def test_a_file_or_folder_that_cannot_be_filled_leaves_the_old_one(tmp_path, error, words):
    for make, old in ((replacing, "it"), (partial(making_folder, replace=True), "it/old")):
        folder = tmp_path / str(len(old))
        (folder / old).parent.mkdir(parents=True)
        (folder / old).write_text("old")
        with pytest.raises((UserError, KeyError, KeyboardInterrupt), match=words):
            broken_off(make, folder / "it", error)
        assert [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()] == [old]
        assert (folder / old).read_text() == "old"


def test_the_sentence_about_a_file_in_it_names_the_place_that_is_meant(tmp_path):
    def put(**how):
        with making_folder(tmp_path / "folder", **how) as beside:
            (beside / "file").mkdir()
            write_text(beside / "file", "x")

    for how, place in (({}, "folder"), ({"shown": tmp_path / "run"}, "run")):
        with pytest.raises(UserError) as caught:
            put(**how)
        assert str(caught.value).startswith(f"{tmp_path / place / 'file'} cannot be written")
        assert ".part" not in str(caught.value)


def test_one_process_makes_a_folder_and_what_others_put_there_meanwhile_stays(tmp_path):
    with making_folder(tmp_path / "folder") as beside:
        (beside / "first").touch()
        words = rf"folder is being written by another process \(process {os.getpid()} on .*\); wait for it"
        with pytest.raises(UserError, match=words), making_folder(tmp_path / "folder"):
            pass
        with making_folder(tmp_path / "other"):
            pass

    def make():
        with making_folder(tmp_path / "theirs") as beside:
            (beside / "ours").touch()
            write_text(tmp_path / "theirs" / "work", "x")

    with pytest.raises(UserError, match="theirs is no longer empty and was left unchanged; name a new folder"):
        make()
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == [
        "folder", "folder/first", "other", "theirs", "theirs/work",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["link", "empty/."])
def test_an_empty_folder_is_filled_by_whatever_name(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    with making_folder(tmp_path / name) as beside:
        (beside / "file").touch()
    assert listing(tmp_path / "empty") == ["file"]
    assert (tmp_path / "link").is_symlink()


def test_files_have_the_mode_of_any_other_whoever_writes_them_and_are_durable(tmp_path, synced):
    (tmp_path / "plain").touch()
    with making_folder(tmp_path / "folder") as beside:
        (beside / "inner").mkdir()
        os.close(os.open(beside / "inner" / "file", os.O_CREAT, 0o600))  # as safetensors does
        places = {str(beside / "inner" / "file"), str(beside / "inner"), str(beside)}
    assert {*synced[:-1]} == places
    assert synced[-1] == str(tmp_path)
    with replacing(tmp_path / "file") as beside:
        os.close(os.open(beside, os.O_CREAT, 0o600))
    for path in (tmp_path / "folder" / "inner" / "file", tmp_path / "file"):
        assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_kill_at_any_moment_leaves_the_old_folder_or_the_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # which takes long, and is a moment all the same

    def put(text):
        with making_folder(tmp_path / "folder", replace=True) as beside:
            (beside / "file").write_text(text)

    put("new")
    assert listing(tmp_path / "folder") == ["file"]
    seen, at, died = set(), 0, True
    while died:
        put("old")
        died, at = dies(partial(put, "new"), at), at + 1
        clean(tmp_path)
        assert listing(tmp_path) == ["folder"]
        assert listing(tmp_path / "folder") == ["file"]
        seen.add((tmp_path / "folder" / "file").read_text())
    assert at > 5
    assert seen == {"old", "new"}
    rename = os.rename

    def refused(source, target):
        if Path(target).name == "folder" and ".before." not in Path(source).name:
            raise OSError(28, FULL)
        rename(source, target)

    put("old")
    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(UserError, match="No space left"):
        put("new")
    assert listing(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "file").read_text() == "old"


def test_the_next_that_writes_it_removes_what_a_killed_process_has_left(tmp_path):
    def fill():
        with making_folder(tmp_path / "folder") as beside:
            (beside / "file").touch()

    assert dies(fill, 9)
    for name in ("file", "file.x"):
        assert dies(partial(write_text, tmp_path / name, "x"), 3)
    kinds = [path.name.split(".")[1] for path in tmp_path.iterdir()]
    assert sorted(kinds) == ["file", "file", "folder", "folder"], "the folder's with its lock, and one of each file"
    fill()
    write_text(tmp_path / "file", "x")
    left, *made = listing(tmp_path)
    assert left.startswith(".file.x.")
    assert made == ["file", "folder"]


@settings(max_examples=20)
@given(st.dictionaries(st.sampled_from("abcd"), st.binary(max_size=200), min_size=1), st.integers(0, 250))
def test_files_are_written_together_in_this_order_or_not_at_all(tmp_path_factory, contents, room):
    folder, order, rename = tmp_path_factory.mktemp("files"), [], os.replace
    for name in contents:
        (folder / name).write_bytes(b"old")
    files = {folder / name: content for name, content in contents.items()}
    noted = partial(mock.patch.object, os, "replace")
    with full_disk(room), suppress(UserError), noted(lambda old, new: (order.append(Path(new)), rename(old, new))):
        write_all(files)
    fits = all(len(content) <= room for content in contents.values())
    assert order == (list(files) if fits else [])
    assert {path: path.read_bytes() for path in files} == (files if fits else dict.fromkeys(files, b"old"))
    assert listing(folder) == sorted(contents)
