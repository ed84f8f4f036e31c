"""Commands of packages: listed without an import, refused by name, and broken one at a time."""

import signal
import subprocess
import sys

import pytest

from atat_zoo.cli import COMMANDS
from atat_zoo.cli import atat as group
from atat_zoo.cli.packages import PACKAGES
from atat_zoo.system.machine import install_command
from tests.cli.terminal import CALL, printed, refused
from tests.installing import alone, described
from tests.pages import ROOT

__all__ = ["alone"]
MINE = '''
import click

@click.command()
@click.argument("word")
def mine(word):
    """Say a word."""
    click.echo(f"mine: {word}")

not_a_command = 5
'''
HELP = "[command.mine]\nsummary = 'Say a word, by whatever it takes.'\n"


@pytest.fixture
def install(tmp_path, alone):
    """Return a function that installs a package with commands, each a name and where its module has it."""

    def install(name, source=MINE, registry=HELP, **commands):
        folder = tmp_path / f"made_up_{name}"
        folder.mkdir()
        (folder / "__init__.py").write_text(source)
        (folder / "registry.toml").write_text(registry)
        points = "".join(f"{command} = {folder.name}:{at}\n" for command, at in commands.items())
        described(tmp_path, f"atat-zoo-{name}", "1.0", f"[atat_zoo.commands]\n{points}")
        return folder.name

    return install


def sections(atat):
    """Return the sections of `atat --help`: the words of each line by heading."""
    found = {}
    for line in printed(atat, "--help").splitlines():
        if line.endswith(":") and not line.startswith(" "):
            found[line[:-1]] = lines = []
        elif found and line:
            lines.append(" ".join(line.split()))
    return found


def test_a_package_adds_a_command_that_is_imported_when_it_is_used(install, atat):
    """It cannot replace one of the core; an unknown one is told those of packages."""
    module = install("words", mine="mine", ls="mine")
    listed = sections(atat)
    ours = ["ls (not available: atat also has this command)", "mine Say a word, by whatever it takes."]
    assert listed["Commands of atat-zoo-words"] == ours
    assert [line.split()[0] for line in listed["Commands"]] == list(COMMANDS)
    assert group.list_commands(None) == [*COMMANDS, "mine"]
    assert printed(atat, "ls", "--help").startswith("Usage: atat ls ")
    assert module not in sys.modules
    assert printed(atat, "mine", "one") == "mine: one\n"
    assert module in sys.modules
    assert printed(atat, "mine", "--help").startswith("Usage: atat mine [OPTIONS] WORD\n")
    code, out, err = atat("mime")
    assert (code, out) == (2, "")
    assert err.startswith("Error: unknown command 'mime'; did you mean 'mine'? (commands: zoo, check, ")
    assert err.endswith(f", bench, {', '.join(sorted(['mine', *PACKAGES]))})\n")


@pytest.mark.parametrize("registry", ["", "[command.other]\nsummary = 'x'", "no TOML", "[command]\nmine = 5"])
def test_a_command_without_a_line_of_help_is_listed_by_its_name(install, atat, registry):
    install("words", registry=registry, mine="mine")
    assert sections(atat)["Commands of atat-zoo-words"] == ["mine"]


def test_two_packages_with_one_command_break_that_command_only(install, atat):
    modules = [install("words", mine="mine", other="mine"), install("more", mine="mine")]
    listed = sections(atat)
    assert listed["Commands of atat-zoo-more"] == ["mine (not available: atat-zoo-words also has this command)"]
    assert listed["Commands of atat-zoo-words"][0] == "mine (not available: atat-zoo-more also has this command)"
    said = refused(atat, "mine", "one")
    assert said == "error: atat mine is offered by atat-zoo-more and atat-zoo-words; uninstall all but one"
    assert not {*modules} & sys.modules.keys()
    assert printed(atat, "other", "one") == "mine: one\n"


BROKEN = {
    "import": ("import a_library_that_is_missing", "ModuleNotFoundError: No module named 'a_library_that_is_missing'"),
    "lines": ("raise RuntimeError('no\\nluck')", "RuntimeError: no luck"),
    "exit": ("import sys\nsys.exit(0)", "SystemExit: 0"),
    "interrupt": ("raise KeyboardInterrupt", "RuntimeError: it raises KeyboardInterrupt"),
    "print": ("print('x')\nraise ValueError", "ValueError:"),
    "nothing": ("", "AttributeError: module 'made_up_broken' has no attribute 'mine'"),
    "kind": ("mine = 5", "TypeError: made_up_broken:mine is not a click command"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_package_breaks_only_its_own_command(install, atat, how):
    source, why = BROKEN[how]
    install("broken", source, mine="mine")
    install("words", other="mine")
    assert "mine Say a word, by whatever it takes." in sections(atat)["Commands of atat-zoo-broken"]
    code, out, err = atat("mine", "one")
    said = f"error: atat mine from atat-zoo-broken cannot be imported: {why}; reinstall atat-zoo-broken"
    assert (code, out, err.splitlines()[-1]) == (2, "", said)
    assert printed(atat, "other", "one") == "mine: one\n"


def test_a_user_interrupts_what_a_package_does(install, atat):
    install("slow", "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)", mine="mine")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        assert atat("mine", "one") == (130, "", "\nstopped\n")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_package_whose_entry_points_are_no_text_breaks_nothing(install, atat, tmp_path):
    for name, data in (("latin", b"[atat_zoo.commands]\n\xe9 = x\n"), ("torn", b"[atat_zoo.commands]\nno point\n")):
        (described(tmp_path, f"atat-zoo-{name}", "1.0", "") / "entry_points.txt").write_bytes(data)
    install("words", mine="mine")
    assert [heading for heading in sections(atat) if "Commands of" in heading] == ["Commands of atat-zoo-words"]
    assert "linear" in printed(atat, "zoo", "list", "noise")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_command_whose_package_is_absent_names_it(alone, atat, name):
    package = PACKAGES[name]
    said = refused(atat, name, "x", "--port", "1")
    assert said == f"error: atat {name} comes with {package}: pip install -e {ROOT / 'plugins' / package}"
    assert sections(atat).keys() == {"Options", "Commands"}


@pytest.mark.parametrize("words", ["--figures --with x/y --sampler ancestral", "--out x"])
def test_a_flag_of_importance_that_has_moved_names_its_command(atat, words):
    said = refused(atat, "importance", "x", *words.split())
    assert said.endswith(
        f" belong to `atat importance-figures`, a command of atat-zoo-paper: {install_command('atat-zoo-paper')}"
    )


def test_help_imports_no_package(tmp_path):
    """In a process of its own, with what is installed here."""
    names = sorted({package.replace("-", "_") for package in PACKAGES.values()})
    call = f"import sys, atexit\natexit.register(lambda: print([m for m in {names!r} if m in sys.modules]))\n{CALL}"
    done = subprocess.run([sys.executable, "-c", call, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
