"""Plugins with one mistake each: a sentence that names it, and everything else works."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from atat_zoo.registry.plugins import of_plugin
from tests.installing import GOOD, alone, good, install

pytestmark = pytest.mark.slow

__all__ = ["alone", "install"]

MENU = '[masking.spiral]\npath = "made_up_shown.strategies:Spiral"\nsummary = "made up"\n'
EXAMPLE = 'EXAMPLES = {("masking", "spiral"): lambda folder: {"power": 0.5}}'
# Of each: what is replaced in the good plugin, by what, and what is said of it.
IMPORTED, HELD = "plugin broken from atat-zoo-broken: ", "'spiral' fails the check "
BROKEN = {
    "import error": ("@component", "import no_such_module", f"{IMPORTED}ModuleNotFoundError: No module named 'no_such"),
    "duplicate name": ('"spiral"', '"uniform"', f"{IMPORTED}masking 'uniform' is provided by both atat-zoo and atat"),
    "wrong kind": ("zoo_masking", "zoo_noise", f"{HELD}'contract': 'alpha' is missing"),
    "rate off by 1 %": (
        "return water",
        "return 0.99 * water",
        "(a) the mean of p over maskable tokens must be the rate",
    ),
    "raises": ("return water", "raise OSError('two\\nlines')\n        water", f"{HELD}'rate': OSError: two lines"),
    "interrupts": ("return water", "raise KeyboardInterrupt\n        water", f"{HELD}'rate': RuntimeError: it rai"),
    "exits": ("return water", "raise SystemExit(0)\n        water", f"{HELD}'rate': SystemExit: 0"),
}


@pytest.fixture
def known(install, tmp_path, monkeypatch):
    """Return `install`, whose plugins a process of its own finds, too."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return install


@pytest.fixture
def plugins(known):
    """Return a function that installs a broken plugin beside a good one."""

    def both(old, new):
        assert old in GOOD
        known("broken", GOOD.replace(old, new))
        known("helix", good("helix"))

    return both


def said(atat, *words):
    code, out, err = atat(*words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    return line


def everything_else_works(atat):
    code, out, _ = atat("zoo", "list", "masking")
    assert code == 0
    assert {"helix", "uniform", "importance"} <= {line.split()[1] for line in out.splitlines()}
    assert atat("check", "mdlm", "masking.use=helix", "estimator.use=frequency")[0] == 0
    assert atat("zoo", "check", "atat-zoo-helix") == (0, "8 conformance checks passed: masking helix\n", "")


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_wrong_with_a_plugin_is_one_sentence(how, plugins, atat):
    old, new, sentence = BROKEN[how]
    plugins(old, new)
    line = said(atat, "zoo", "check", "atat-zoo-broken")
    assert sentence in line
    if sentence.startswith(IMPORTED):  # as it is said of the whole zoo
        assert said(atat, "zoo", "check") == line == f"error: {line[line.index(sentence) :]}"
    else:
        assert HELD in line
    if how == "rate off by 1 %":
        assert "; smallest example: drawn=8 rows of length 1 in " in line
        assert "# " not in line
    everything_else_works(atat)


@pytest.mark.parametrize("files", [{}, {"registry.toml": MENU, "strategies.py": f"print('hello')\n{GOOD}"}])
def test_what_a_plugin_prints_when_it_is_imported_is_not_on_standard_output(files, install, atat):
    install("shown", f"print('hello')\n{GOOD}", files=files)
    assert "spiral" in {part["name"] for part in json.loads(atat("zoo", "list", "--json")[1])}
    code, out, err = atat("resolve", "mdlm", "masking.use=spiral", "estimator.use=frequency", "--json")
    assert (code, json.loads(out)["masking"]["use"]) == (0, "spiral")
    assert "hello" in err or not files  # imported by the command before


def test_a_plugin_does_not_write_to_the_terminal_with_control_characters(install, atat):
    hostile = "\x1b]0;title\x07\x1b[31m\x9b2J"
    install("broken", f"raise RuntimeError({hostile!r})", metadata=False)
    menu = MENU.replace("made up", "made \\u001B[31m\\u009B2Jup")
    install("menu", "", files={"registry.toml": menu, "strategies.py": GOOD})
    for words in (["list"], ["list", "--json"], ["show", "masking", "spiral"], ["plugins"], ["plugins", "--json"]):
        code, out, err = atat("zoo", *words)
        assert code == 0
        assert (out + err).replace("\n", "").isprintable()
        if "--json" not in words and "show" not in words:
            assert "title" in out + err
    code, out, err = atat("zoo", "check")
    assert (code, out, "title" in err) == (2, "", True)
    assert err.replace("\n", "").isprintable()


def test_a_menu_that_is_wrong_breaks_its_own_plugin_only(plugins, install, atat):
    plugins("import", "import")
    line = "masking.twist = {summary = '', path = 'made_up_menu:Twist', parameters = {turns = {help = 'how many'}}}"
    install("menu", "", files={"registry.toml": f"{line}\n"})
    code, out, err = atat("zoo", "list", "masking")
    assert (code, "helix" in out, "spiral" in out) == (0, True, True)
    assert len(err.splitlines()) == 1
    assert "plugin menu from atat-zoo-menu is broken: " in err
    assert "; correct it" in err


NO_EXAMPLES = "cannot import EXAMPLES from made_up_shown.examples: "
UNTESTED = "masking spiral: has required parameters and no example, so only its description was checked\n"


@pytest.mark.parametrize(
    ("old", "new", "files", "code", "sentence"),
    [
        ("param(0.5, ", "param(", {"examples.py": EXAMPLE}, 0, "8 conformance checks passed: masking spiral\n"),
        ("param(0.5, ", "param(", {}, 0, f"{UNTESTED}2 conformance checks passed: masking spiral\n"),
        ("", "", {"examples.py": "import no_such_module"}, 2, f"{NO_EXAMPLES}ModuleNotFoundError: No module"),
        ("", "", {"examples.py": ""}, 2, f"{NO_EXAMPLES}AttributeError: module"),
        (
            "",
            "",
            {"examples.py": EXAMPLE.replace("0.5", "-1.0")},
            2,
            "'rate': UserError: masking.power: must be greate",
        ),
        (
            "",
            "",
            {"examples.py": EXAMPLE.replace("0.5", "1 / 0")},
            2,
            "'spiral' fails the check 'rate': ZeroDivisio",
        ),
        (GOOD, "", {"registry.toml": MENU, "strategies.py": "raise OSError('on fire')"}, 2, "OSError: on fire"),
        (
            GOOD,
            "",
            {"registry.toml": MENU, "strategies.py": "Spiral = 3"},
            2,
            "TypeError: Spiral is not a class, but 3",
        ),
    ],
)
def test_a_part_is_held_by_its_example_and_what_is_wrong_with_it_is_one_sentence(
    old, new, files, code, sentence, known, atat
):
    known("shown", GOOD.replace(old, new) if old else GOOD, files=files)
    if code == 0:
        assert atat("zoo", "check", "atat-zoo-shown")[:2] == (0, sentence)
        return
    line = said(atat, "zoo", "check", "atat-zoo-shown")
    assert sentence in line
    if "registry.toml" in files:
        assert "masking 'spiral' of atat-zoo-shown cannot be imported from " in line
        assert line.endswith("; reinstall atat-zoo-shown")
        assert said(atat, "zoo", "check") == line.replace("error: ", "error: masking spiral: ")


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
@pytest.mark.parametrize("apart", [False, True])
def test_an_interrupt_is_the_users_only_if_one_was_pressed(handler, apart):
    def raised(pressed):
        try:
            with of_plugin():
                if pressed:
                    signal.raise_signal(signal.SIGINT)
                raise KeyboardInterrupt
        except BaseException as error:
            return type(error)

    before = signal.signal(signal.SIGINT, handler)
    try:
        if apart:  # in a thread, where a signal is never handled
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(raised, False).result() is RuntimeError
        else:
            assert raised(False) is RuntimeError
            assert raised(True) is (KeyboardInterrupt if callable(handler) else RuntimeError)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
