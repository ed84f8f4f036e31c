"""A file is there whole or not at all."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atat_zoo import UserError
from atat_zoo.experiment.runs import RunFolder, write_bytes, write_json, write_text
from atat_zoo.system.atomic import HOST, clean, making_folder, replacing, sync_folder, write_all
from tests.limited import full_disk
from tests.system.dying import dies


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


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


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path, failure):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(failure):
        broken_off(replacing, path, failure)
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["file"]


def test_a_pipe_is_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UserError, match="pipe is a device or a pipe, which cannot be replaced; name a file"):
        write_text(path, "new")
    assert path.is_fifo()
    assert listing(tmp_path) == ["pipe"]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_links_in_a_circle_are_a_sentence(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(link)
    with pytest.raises(UserError, match="link cannot be written: Too many levels of symbolic links; free some space"):
        write_text(link, "new")
    assert listing(tmp_path) == ["back", "link"]


def test_a_file_has_the_mode_of_any_other_whoever_writes_it(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "file") as beside:
        os.close(os.open(beside, os.O_CREAT, 0o600))  # as safetensors does
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


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
    assert "choose another folder" in text
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


def test_a_folder_is_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    write_text(tmp_path / "file", "x")
    # First the file under its other name, then the folder with the new name.
    assert len(synced) == 2
    assert synced[0].endswith(".part")
    assert synced[1] == str(tmp_path)
    sync_folder(tmp_path)
    assert synced[2] == str(tmp_path)


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    for content in ("old", "new"):
        with making_folder(tmp_path / "folder", replace=True) as beside:
            (beside / content).write_text(content)
            assert not (tmp_path / "folder" / content).exists()
        assert [p.name for p in (tmp_path / "folder").iterdir()] == [content]
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_folder_that_cannot_be_filled_leaves_the_old_one(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    full = "No space left on device"
    errors = (OSError(28, full), RuntimeError("I/O error: broken (os error 28)"), KeyError("x"), KeyboardInterrupt("x"))
    for error, words in zip(errors, (f"folder cannot be written: {full}; free some", full, "x", "x"), strict=True):
        with pytest.raises((UserError, KeyError, KeyboardInterrupt), match=words):
            broken_off(partial(making_folder, replace=True), folder, error)
        assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["folder", "folder/old"]


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


def test_what_others_put_into_a_new_folder_meanwhile_stays(tmp_path):
    folder = tmp_path / "folder"

    def make():
        with making_folder(folder) as beside:
            (beside / "ours").touch()
            folder.mkdir()
            (folder / "theirs").write_text("work")

    with pytest.raises(UserError, match="folder is not empty any more, and is left as it is; name a new folder"):
        make()
    assert (folder / "theirs").read_text() == "work"
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["folder", "folder/theirs"]


def test_one_process_makes_a_folder(tmp_path):
    with making_folder(tmp_path / "folder") as beside:
        (beside / "first").touch()
        words = rf"folder is being written by another process \(process {os.getpid()} on .*\); wait for it"
        with pytest.raises(UserError, match=words), making_folder(tmp_path / "folder"):
            pass
        with making_folder(tmp_path / "other"):
            pass
    assert listing(tmp_path) == ["folder", "other"]
    assert listing(tmp_path / "folder") == ["first"]


@pytest.mark.parametrize("name", ["link", "empty/."])
def test_an_empty_folder_is_filled_by_whatever_name(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    with making_folder(tmp_path / name) as beside:
        (beside / "file").touch()
    assert listing(tmp_path / "empty") == ["file"]
    assert (tmp_path / "link").is_symlink()


def test_the_files_of_a_folder_have_the_mode_of_any_other_and_are_durable(tmp_path, monkeypatch):
    (tmp_path / "plain").touch()
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    with making_folder(tmp_path / "folder") as beside:
        (beside / "inner").mkdir()
        os.close(os.open(beside / "inner" / "file", os.O_CREAT, 0o600))  # as safetensors does
        places = {str(beside / "inner" / "file"), str(beside / "inner"), str(beside)}
    assert (tmp_path / "folder" / "inner" / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert {*synced[:-1]} == places
    assert synced[-1] == str(tmp_path)


def test_a_kill_at_any_moment_leaves_the_old_folder_or_the_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # which takes long, and is a moment all the same

    def put(text):
        with making_folder(tmp_path / "folder", replace=True) as beside:
            (beside / "file").write_text(text)

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


def test_an_exchange_that_is_refused_leaves_the_old_folder(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    rename = os.rename

    def refused(source, target):
        if Path(target).name == "folder" and ".before." not in Path(source).name:
            raise OSError(28, "No space left on device")
        rename(source, target)

    def put():
        with making_folder(tmp_path / "folder", replace=True):
            pass

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(UserError, match="No space left"):
        put()
    assert listing(tmp_path) == ["folder"]
    assert listing(tmp_path / "folder") == ["old"]


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
def test_files_are_written_together_or_not_at_all(tmp_path_factory, contents, room):
    folder = tmp_path_factory.mktemp("files")
    for name in contents:
        (folder / name).write_bytes(b"old")
    files = {folder / name: content for name, content in contents.items()}
    with full_disk(room), suppress(UserError):
        write_all(files)
    fits = all(len(content) <= room for content in contents.values())
    assert {path: path.read_bytes() for path in files} == (files if fits else dict.fromkeys(files, b"old"))
    assert listing(folder) == sorted(contents)


def test_files_take_their_places_in_the_order_in_which_they_are_given(tmp_path, monkeypatch):
    order, rename = [], os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (order.append(Path(new).name), rename(old, new)))
    write_all({tmp_path / name: b"" for name in ("key", "form", "a")})
    assert order == ["key", "form", "a"]
