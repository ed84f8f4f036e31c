"""Look-ups: what is found, and what is said when nothing is."""

import subprocess
import sys

import attrs
import pytest

from atat_zoo import UserError, Zoo
from atat_zoo.registry import KINDS, TABLES, Context, component, param
from atat_zoo.registry.plugins import Plugin
from atat_zoo.registry.registry_file import RegistryFile, entry_of, read, shipped
from atat_zoo.registry.zoo import PACKAGES
from atat_zoo.system.machine import install_command


@component
class Spiral:
    """A masking strategy."""

    name = "spiral"
    summary = "a masking strategy"
    turns: int = param(1, help="turns", ge=1)

    def build(self, context):
        return ("built", self.turns, context)


def zoo_of(*entries, found=(), aliases=None):
    return Zoo(RegistryFile(entries=tuple(entries), aliases=aliases or {}), list(found))


@pytest.fixture(scope="module")
def zoo():
    return Zoo.load()


def test_every_kind_has_a_part_and_every_default_exists(zoo):
    for kind in KINDS:
        assert zoo.names(kind), kind
        assert zoo.names(kind) == sorted(zoo.names(kind))
    for kind, default in TABLES.items():
        assert zoo.describe(kind, default).name == default


def test_an_unknown_kind_or_name_names_the_nearest_and_all(zoo):
    words = rf"^unknown kind of component 'maskin'; did you mean 'masking'\? \(available: {', '.join(KINDS)}\)$"
    for ask in (zoo.names, lambda kind: zoo.describe(kind, "x"), lambda kind: zoo.build(kind, "x")):
        with pytest.raises(UserError, match=words):
            ask("maskin")
    with pytest.raises(UserError) as caught:
        zoo.describe("masking", "importence")
    text = str(caught.value)
    assert text.startswith("unknown masking 'importence'; did you mean 'importance'? (available: ")
    assert all(name in text for name in zoo.names("masking"))
    with pytest.raises(UserError, match="did you mean 'time_only'"):
        zoo.describe("masking", "time_onlee")
    with pytest.raises(UserError, match=r"^((?!did you mean).)*$"):
        zoo.describe("masking", "qqqqqq")
    assert zoo.spec("masking", "time_only") == zoo.spec("masking", "uniform")
    assert "time_only" not in zoo.names("masking")


def test_spec_reports_every_problem_of_a_table(zoo):
    with pytest.raises(UserError) as caught:
        zoo.spec("masking", {"use": "importance", "temperature": -1, "temprature": 1.0})
    assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(UserError, match=r"^masking\.use: is missing; set it to one of "):
        zoo.spec("masking", {"temperature": 1.0})


def test_build_gives_what_build_returns_or_the_part_itself(monkeypatch):
    zoo = zoo_of(entry_of("masking", Spiral, "here"))
    context = Context(vocabulary_size=3, length=4)
    assert zoo.build("masking", {"use": "spiral", "turns": 2}, context) == ("built", 2, context)
    monkeypatch.setenv("ATAT_ZOO_PLUGINS", "")
    first = Zoo.load()
    built = first.build("noise", "linear")
    assert built.name == "linear"
    assert attrs.has(type(built))
    assert Zoo.load() is first, "it is read once per environment"
    assert first.names("masking") == Zoo(read(shipped()), []).names("masking")


def test_an_alias_does_not_stand_in_for_a_part():
    plain = entry_of("masking", Spiral, "atat-zoo")
    other = attrs.evolve(plain, name="other", distribution="sly")
    sly = Plugin(name="p", distribution="sly", version="1", entries=(other,), aliases={"masking": {"spiral": "other"}})
    assert zoo_of(plain, found=[sly]).describe("masking", "spiral") == plain


HEAVY = ("torch", "composer", "rich", "webdataset", "tokenizers", "hypothesis", "pytest")


@pytest.mark.parametrize(
    "code",
    [
        "import atat_zoo",
        "import atat_zoo.cli",
        "from atat_zoo import Zoo; zoo = Zoo.load(); [zoo.describe(k, n) for k in zoo._entries for n in zoo.names(k)]",
        "from atat_zoo import Zoo; zoo = Zoo.load(); [zoo.component(k, n) for k in zoo._entries for n in zoo.names(k)]",
        "import atat_zoo.system.environment",
    ],
)
def test_nothing_heavy_is_imported(code):
    script = f"import sys; {code}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(("kind", "name"), PACKAGES)
def test_a_component_whose_package_is_absent_names_it(kind, name):
    package = PACKAGES[kind, name]
    with pytest.raises(UserError) as refused:
        zoo_of().spec(kind, {"use": name})
    run = f"run `{install_command(package)}`"
    assert str(refused.value) == f"{kind}.use: {kind} {name} comes with the plugin {package}; {run}"
    there = Plugin(name="it", distribution=package, version="1.0", status="disabled")
    with pytest.raises(UserError, match=r"unknown .*; not loaded: plugin it \(disabled\)"):
        zoo_of(found=[there]).spec(kind, {"use": name})
    with pytest.raises(UserError, match=f"unknown {kind} '{name}s'"):
        zoo_of().spec(kind, {"use": f"{name}s"})
