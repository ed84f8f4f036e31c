"""What a run notes of where it was begun, and that nothing there is carried out for it."""

import json
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from atat_zoo import Zoo
from atat_zoo.system.environment import describe


def test_the_environment_can_be_written_as_json(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["atat", "train", "ü", os.fsdecode(b"\xff.toml")])
    monkeypatch.chdir(tmp_path)
    said = describe(Zoo.load().plugins)
    text = json.dumps(said, ensure_ascii=False).encode("utf-8")
    assert json.loads(text) == said
    assert said["command"] == ["atat", "train", "ü", "\\udcff.toml"]
    assert said["machine"]["cores"] == os.cpu_count()
    assert said["packages"]["torch"].startswith("2.")
    assert said["git"] is None  # no repository here


def git(*words, cwd=None):
    call = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
    return subprocess.run(call, check=True, capture_output=True, text=True, cwd=cwd).stdout.strip()


def commit(folder, *words):
    git("init", "-q", *words, str(folder))
    (folder / "file").write_text("x")
    git("add", ".", cwd=folder)
    git("commit", "-q", "-m", "x", cwd=folder)
    return git("rev-parse", "HEAD", cwd=folder)


@pytest.mark.parametrize(
    ("where", "configured"),
    [
        (".", "[core]\nfsmonitor = {script}\n"),
        (".", "[core]\nhooksPath = {hooks}\n"),
        (".", '[filter "a.b"]\nclean = {script}\nrequired\n'),
        (".", '[filter "a.b"]\nprocess = {script}\nrequired\n'),
        (".", '[filter "A=b"]\nclean = {script}\n'),  # not known at all
        ("inner", "[core]\nfsmonitor = {script}\n"),
    ],
)
def test_the_configuration_of_the_working_folders_repository_runs_no_command(where, configured, tmp_path, monkeypatch):
    here, ran, script, hooks = (tmp_path / name for name in ("here", "ran", "script", "hooks"))
    (here / "inner").mkdir(parents=True)
    (here / ".gitattributes").write_text(f"* filter={'A=b' if 'A=b' in configured else 'a.b'}\n")
    commit(here / "inner")
    (here / ".gitmodules").write_text('[submodule "inner"]\npath = inner\nurl = ./inner\n')
    made = commit(here)
    script.write_text(f"#!/bin/sh\ntouch '{ran}'\ncat\n")
    script.chmod(0o755)
    hooks.mkdir()
    (hooks / "post-index-change").symlink_to(script)
    with (here / where / ".git" / "config").open("a") as file:
        file.write(configured.format(script=script, hooks=hooks))
    monkeypatch.chdir(here)
    for text in ("x", "y"):  # and the git state is that of the working folder
        (here / "file").write_text(text)  # looked at again, whatever it is
        assert describe([])["git"] == (None if "=b" in configured else {"commit": made, "changed": text == "y"})
        assert not ran.exists()
    for words in (["status"], ["add", "file"]):  # the first writes the index only where it is in doubt
        with suppress(subprocess.CalledProcessError):
            git(*words)
    assert ran.exists()  # as git does by itself
