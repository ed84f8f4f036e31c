"""A file is there whole or not at all."""

import json
import os
import subprocess
import sys

import pytest

from atat_zoo import UserError
from atat_zoo.run import RunFolder, write_bytes, write_json, write_text
from atat_zoo.run.atomic import clean, replacing, replacing_folder, sync_folder
from tests.limited import full_disk


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
    kept = [f".model.safetensors.{running.pid}.part", ".notes.part", "model.safetensors", "a.1.part"]
    for name in (*kept, f".model.safetensors.{ended.pid}.part", f".x.{os.getpid()}.part", f".x.{'9' * 30}.part"):
        (tmp_path / name).touch()
    (tmp_path / f".model.old.{ended.pid}.part" / "inside").mkdir(parents=True)
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
        with replacing_folder(tmp_path / "folder") as beside:
            (beside / content).write_text(content)
            assert not (tmp_path / "folder" / content).exists()
        assert [p.name for p in (tmp_path / "folder").iterdir()] == [content]
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_folder_that_cannot_be_filled_leaves_the_old_one(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    for error, words in ((OSError(28, "No space left on device"), "No space left"), (KeyError("x"), "x")):
        with pytest.raises((UserError, KeyError), match=words):
            broken_off(replacing_folder, folder, error)
        assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["folder", "folder/old"]


def test_the_sentence_about_a_file_in_it_names_the_place_that_is_meant(tmp_path):
    def put():
        with replacing_folder(tmp_path / "folder") as beside:
            (beside / "file").mkdir()
            write_text(beside / "file", "x")

    with pytest.raises(UserError) as caught:
        put()
    assert str(caught.value).startswith(f"{tmp_path / 'folder' / 'file'} cannot be written")
    assert ".part" not in str(caught.value)
