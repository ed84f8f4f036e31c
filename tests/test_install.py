"""`.ci/install.py`: pip's settings reach uv, and pip installs where uv is missing or fails."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

spec = importlib.util.spec_from_file_location("install", Path(__file__).parents[1] / ".ci" / "install.py")
install = importlib.util.module_from_spec(spec)
spec.loader.exec_module(install)

WORDS = st.lists(st.text("abc/:.@'\"", min_size=1), min_size=1, max_size=3)
# Each logs what it is asked; the uv fails as often as the file `failures` has lines.
PYTHON = """#!/bin/sh
echo "python $*" >> {folder}/log
case "$*" in
  *config*) echo "global.find-links='/wheels /more'"; echo ":env:.cert='/ca.pem'";;
  "-m uv --version") exit 1;;
  *) test -e {folder}/broken && {{ echo no network >&2; exit 7; }};;
esac
exit 0
"""
UV = """#!/bin/sh
test "$1" = --version && exit 0
echo "uv $* [$UV_FIND_LINKS] [$SSL_CERT_FILE] [$UV_TORCH_BACKEND]" >> {folder}/log
test -s {folder}/failures || exit 0
sed -i 1d {folder}/failures
echo "error: no such
  index" >&2
exit 2
"""


@given(st.dictionaries(st.sampled_from(sorted(install.VARIABLES)), st.tuples(WORDS, WORDS, WORDS)))
def test_the_environment_overrides_the_settings_of_a_file(settings):
    lines = [
        f"{section}.{key}={' '.join(words)!r}"
        for key, each in settings.items()
        for section, words in zip((":env:", "install", "global"), each, strict=True)
    ]
    expected = {install.VARIABLES[key][0]: install.VARIABLES[key][1].join(own) for key, (own, *_) in settings.items()}
    assert install.variables_for("\n".join(lines)) == install.ALIKE | expected
    assert install.variables_for("\n".join(lines[1::3] + lines[2::3])) == install.ALIKE | {
        install.VARIABLES[key][0]: install.VARIABLES[key][1].join(words) for key, (_, words, _) in settings.items()
    }


def test_other_settings_are_left_out():
    assert install.variables_for("global.timeout='5'\ninstall.user='true'\nfreeze.find-links='/no'") == install.ALIKE


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Install something with stand-ins for python and uv, and return the exit code and the commands."""

    def script(name, text):
        (tmp_path / name).write_text(text.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)

    def called(*, uv=True, failures=0, broken=False, gpu=False, platform="linux", **variables):
        script("python", PYTHON)
        (tmp_path / "failures").write_text("x\n" * failures)
        if uv:
            script("uv", UV)
        if broken:
            (tmp_path / "broken").touch()
        monkeypatch.setattr(install, "DRIVERS", (str(tmp_path),) if gpu else ())
        monkeypatch.setattr(install.sys, "platform", platform)
        for name in os.environ:
            if name.startswith("UV_") or name == "SSL_CERT_FILE":
                monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        code = install.install(tmp_path / "python", ["-e", "."])
        return code, [line for line in (tmp_path / "log").read_text().splitlines() if "config" not in line]

    return called


def by_uv(tmp_path, backend=""):
    asked = f"uv pip install --quiet --python {tmp_path / 'python'} -c constraints.txt -e ."
    return f"{asked} [/wheels,/more] [/ca.pem] [{backend}]"


BY_PIP = "python -m pip install --quiet --disable-pip-version-check -c constraints.txt"


def test_uv_installs_with_pips_settings(call, tmp_path, capfd):
    assert call() == (0, [by_uv(tmp_path, "cpu")])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("build", "told"), [("2.7.0+cpu", True), ("2.7.0", False)])
def test_a_torch_without_cuda_is_announced(call, tmp_path, capfd, build, told):
    packages = tmp_path.parent / "lib" / "python3" / "site-packages"
    (packages / f"torch-{build}.dist-info").mkdir(parents=True)
    assert call()[0] == 0
    assert ("UV_TORCH_BACKEND=cu126" in capfd.readouterr().out) == told
    shutil.rmtree(packages)


def test_without_pytorchs_index_the_others_have_torch(call, tmp_path, capfd):
    assert call(failures=1) == (0, [by_uv(tmp_path, "cpu"), by_uv(tmp_path)])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("machine", [{"gpu": True}, {"platform": "darwin"}])
def test_with_a_gpu_and_on_other_systems_torch_is_the_usual_one(call, tmp_path, machine):
    assert call(**machine) == (0, [by_uv(tmp_path)])


def test_variables_that_the_user_sets_win(call, tmp_path):
    code, commands = call(UV_TORCH_BACKEND="cu126", UV_FIND_LINKS="/own")
    assert (code, commands) == (0, [by_uv(tmp_path, "cu126").replace("/wheels,/more", "/own")])


def test_pip_installs_where_uv_fails(call, tmp_path, capfd):
    code, commands = call(failures=2)
    assert (code, commands) == (0, [by_uv(tmp_path, "cpu"), by_uv(tmp_path), f"{BY_PIP} -e ."])
    out, err = capfd.readouterr()
    assert out.startswith("uv cannot install the packages (error: no such index), so pip does")
    assert (out.count("\n"), err) == (1, "")


def test_pip_brings_uv_where_it_is_missing(call, tmp_path):
    code, commands = call(uv=False)
    asked = f"python -m uv pip install --quiet --python {tmp_path / 'python'} -c constraints.txt -e ."
    assert (code, commands) == (0, ["python -m uv --version", f"{BY_PIP} uv", asked])


def test_pip_installs_where_uv_is_not_to_be_had(call, capfd):
    code, commands = call(uv=False, broken=True)
    assert (code, commands) == (7, ["python -m uv --version", f"{BY_PIP} uv", f"{BY_PIP} -e ."])
    assert "(no network)" in capfd.readouterr().out
