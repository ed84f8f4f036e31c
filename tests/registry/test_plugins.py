"""Plugins: found by entry point, loaded one at a time, never trusted to work."""

import re
import signal
import sys
from types import SimpleNamespace

import pytest

from atat_zoo.experiment import from_table, load
from atat_zoo.registry import CONTRACT, Zoo, hookimpl, plugins, registry_file
from atat_zoo.registry.hookspecs import hook
from atat_zoo.system.errors import UserError
from tests.installing import GOOD, alone, good, install

__all__ = ["alone", "install"]

MANIFEST = """
[masking.spiral]
path = "made_up_listed.strategies:Spiral"
summary = "made up"
[masking.spiral.parameters]
power = { type = "float", default = 0.5, help = "how much" }

[alias.masking]
twirl = "spiral"
"""


pytestmark = pytest.mark.usefixtures("alone")


def only(zoo):
    (plugin,) = zoo.plugins
    return plugin


def test_a_good_plugin_is_listed_described_and_built(install):
    install("good", GOOD)
    zoo = Zoo.load()
    assert {"spiral", "uniform"} <= set(zoo.names("masking"))
    entry = zoo.describe("masking", "spiral")
    assert (entry.distribution, entry.parameters["power"]["default"]) == ("atat-zoo-good", 0.5)
    assert zoo.build("masking", {"use": "spiral", "power": 3}).power == 3
    plugin = only(zoo)
    assert (plugin.name, plugin.distribution, plugin.version, plugin.status) == ("good", "atat-zoo-good", "1.2", "ok")


def test_what_a_plugin_offers_of_several_kinds_is_all_described():
    offered = {"masking": ["uniform", "position"], "sampler": ["strided"]}
    hooks = {
        hook(kind): hookimpl(lambda kind=kind: [Zoo.load().component(kind, name) for name in offered[kind]])
        for kind in offered
    }
    entries = plugins.hook_entries(SimpleNamespace(**hooks), "atat-zoo-good")
    found = {kind: [entry.name for entry in entries if entry.kind == kind] for kind in offered}
    assert (found, {entry.distribution for entry in entries}) == (offered, {"atat-zoo-good"})


# What is wrong, and what the report says of it.
BROKEN = {
    "raises": ("raise RuntimeError('no such card')", "RuntimeError: no such card"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "interrupts": ("raise KeyboardInterrupt", "RuntimeError: it raises KeyboardInterrupt"),
    "ends": ("raise GeneratorExit", "GeneratorExit"),
    "misspelt": (GOOD.replace("atat_zoo_masking", "atat_zoo_maskings"), "unknown hook 'atat_zoo_maskings'"),
    "no_class": (GOOD.replace("return [Spiral]", "return ['spiral']"), "TypeError"),
    "no_summary": (GOOD.replace("name, summary,", "name, saying,"), "lacks the attribute 'summary'"),
    "no_mark": (GOOD.replace("@hookimpl", ""), "provides no components"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_plugin_is_reported_and_everything_else_works(how, install, monkeypatch):
    source, said = BROKEN[how]
    install("broken", source)
    install("good", good("helix"))
    zoo = Zoo.load()
    (plugin,) = (p for p in zoo.plugins if p.name == "broken")
    assert plugin.status == "broken"
    assert said in plugin.error
    assert {"helix", "uniform"} <= set(zoo.names("masking"))
    with pytest.raises(UserError, match=r"unknown masking 'spiral'.*not loaded: plugin broken \(broken\)"):
        zoo.describe("masking", "spiral")
    monkeypatch.setenv(plugins.STRICT, "1")
    with pytest.raises(UserError, match=f"plugin 'broken' from atat-zoo-broken is broken: .*{re.escape(said)}"):
        Zoo.load()


def test_a_user_interrupts_what_a_plugin_does(install):
    install("slow", "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            Zoo.load()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("allowed", "helix"), [("", "disabled"), (" two , three", "ok"), (None, "ok")])
def test_plugins_outside_a_list_or_disabled_in_the_menu_are_not_imported(
    install, monkeypatch, tmp_path, allowed, helix
):
    module = install("good", GOOD)
    install("two", good("helix"))
    registry = None
    if allowed is None:
        registry, text = tmp_path / "registry.toml", registry_file.shipped().read_text(encoding="utf-8")
        registry.write_text(text.replace("disabled = []", 'disabled = ["good"]'), encoding="utf-8")
    else:
        monkeypatch.setenv(plugins.ALLOWED, allowed)
    zoo = Zoo.load(registry)
    assert {"spiral", "helix"} & set(zoo.names("masking")) == ({"helix"} if helix == "ok" else set())
    assert {plugin.name: plugin.status for plugin in zoo.plugins} == {"good": "disabled", "two": helix}
    assert module not in sys.modules
    with pytest.raises(UserError, match=r"plugin good \(disabled\)"):
        zoo.describe("masking", "spiral")


def test_two_parts_of_one_name_name_both_distributions(install):
    install("one", GOOD)
    install("two", GOOD)
    install("good", good("helix"))
    zoo = Zoo.load()
    # Neither is taken: which one would depend on the order in which they are found.
    assert {p.name: p.status for p in zoo.plugins} == {"one": "broken", "two": "broken", "good": "ok"}
    for plugin in zoo.plugins:
        if plugin.status == "broken":
            assert re.search(
                "masking 'spiral' is provided by both atat-zoo-(one and .*two|two and .*one)", plugin.error
            )
    assert "spiral" not in zoo.names("masking")
    assert {"helix", "uniform"} <= set(zoo.names("masking"))


@pytest.mark.parametrize("stated", ["99", "'new'"])
def test_a_plugin_for_a_later_contract_is_broken_and_says_so(install, stated):
    install("early", f"CONTRACT = {stated}\n{GOOD}")
    module = install("listed", "", files={"registry.toml": f"[plugins]\ncontract = {stated}\n{MANIFEST}"})
    for plugin in Zoo.load().plugins:
        assert f"its CONTRACT is {stated}, but this atat-zoo supports at most {CONTRACT}; upgrade" in plugin.error
    assert module not in sys.modules


def test_a_plugin_with_a_menu_of_its_own_is_listed_without_being_imported(install):
    module = install("listed", "", files={"registry.toml": MANIFEST, "strategies.py": GOOD})
    # One that only describes commands hides no part.
    install("good", good("helix"), files={"registry.toml": "[command.good]\nsummary = 'It is good.'\n"})
    zoo = Zoo.load()
    assert zoo.describe("masking", "helix").distribution == "atat-zoo-good"
    assert zoo.describe("masking", "twirl").name == "spiral"
    assert zoo.describe("masking", "spiral").distribution == "atat-zoo-listed"
    assert module not in sys.modules
    assert zoo.build("masking", "twirl").power == 0.5
    assert module in sys.modules


def test_what_is_wrong_with_a_distribution_does_not_stop_the_rest(install, monkeypatch):
    install("bare", GOOD, metadata=False)
    install("garbled", "", entry_points="[atat_zoo]\nthis is no entry point\n[[")
    install("lost", GOOD, entry_points="[atat_zoo]\nlost = made_up_nowhere\n")
    for name, point in (("other", "x = made_up_other:main"), ("none", "this is no entry point")):
        install(name, "raise RuntimeError", entry_points=f"[console_scripts]\n{point}\n")
    found = list(plugins.distributions())
    monkeypatch.setattr(plugins, "distributions", lambda: found * 2)  # one that is found twice is one
    zoo = Zoo.load()
    assert "spiral" in zoo.names("masking")
    stated = {plugin.distribution: plugin for plugin in zoo.plugins}
    # Whose entry points cannot be read has no name by which it could be known as one.
    assert {name: plugin.status for name, plugin in stated.items()} == {
        "bare": "ok",
        "atat-zoo-garbled": "broken",
        "atat-zoo-lost": "broken",
    }
    assert "made_up_nowhere" in stated["atat-zoo-lost"].error
    assert [plugin.distribution for plugin in zoo.plugins].count("bare") == 1
    with pytest.raises(UserError, match="requires: atat-zoo-bare is not installed; run `pip install atat-zoo-bare`"):
        from_table({"name": "x", "requires": ["atat-zoo-bare"]})


@pytest.mark.parametrize(
    ("kind", "override"),
    [
        ("masking", "masking=spiral"),
        ("uncertainty", "sampler={use='uncertainty_guided', uncertainty='spiral'}"),
        ("uncertainty", "sampler={use='combination', order={use='uncertainty', uncertainty='spiral'}}"),
        ("bound", "evaluation.bound=spiral"),
        ("logger", "train.loggers=['file', 'spiral']"),
    ],
)
def test_an_experiment_says_which_distributions_its_parts_are_from(kind, override, install):
    install("good", GOOD.replace("atat_zoo_masking", f"atat_zoo_{kind}"))
    install("other", good("helix"))
    # The made-up class is nothing of the kind, and is not asked to be.
    made = load("mdlm", [override, "estimator.use=frequency"])
    assert made.requires == ("atat-zoo-good",)
    assert made.to_table()["requires"] == ["atat-zoo-good"]
    assert from_table(made.to_table()) == made
    assert load("mdlm").requires == ()


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"Name": "it", "Version": "2"}, "2"),
        ({"Name": "it"}, "unknown"),
        (None, "unknown"),
        (FileNotFoundError, "unknown"),
    ],
)
def test_the_version_of_half_an_installation_is_unknown(metadata, found):
    class Half:
        @property
        def metadata(self):
            if metadata is FileNotFoundError:
                raise metadata
            return metadata

    assert plugins.metadata_of(Half(), "Version", "unknown") == found
