"""What was called otherwise is answered with its name, at every place where a name is refused."""

import re
from importlib import import_module
from types import ModuleType

import click
import pytest

from atat_zoo.cli import COMMANDS, _instead, packages
from atat_zoo.experiment import from_table, load
from atat_zoo.experiment.schema import SECTIONS
from atat_zoo.registry import KINDS, Zoo, hookimpl, plugins
from atat_zoo.registry.spec import fields_of, structure
from atat_zoo.system import old_names
from atat_zoo.system.errors import UserError

ZOO = Zoo.load()
KEYS = [(owner, old, now) for owner, keys in old_names.KEYS.items() for old, now in keys.items()]
SETTINGS = [(name, flag, key) for name, keys in old_names.SETTINGS.items() for flag, key in keys.items()]


@pytest.mark.parametrize(("old", "now"), old_names.KINDS.items())
def test_an_old_kind_is_answered(old, now, tmp_path):
    assert old not in KINDS
    assert now in KINDS
    said = f"it is now called '{now}'"
    for ask in (ZOO.names, lambda kind: ZOO.spec(kind, "x")):
        with pytest.raises(UserError, match=said):
            ask(old)
    with pytest.raises(UserError, match=f"experiment: {old}: was renamed to {now}$"):
        from_table({"name": "x", old: {"use": "x"}})
    module = ModuleType("mine")
    setattr(module, f"atat_zoo_{old}", hookimpl(lambda: []))
    with pytest.raises(UserError, match=f"the hook atat_zoo_{old} is now called atat_zoo_{now}; rename it"):
        plugins.hook_entries(module, "mine")
    registry = tmp_path / "registry.toml"
    registry.write_text(f"[{old}.x]\npath = 'a:b'\nsummary = 'c'\n")
    with pytest.raises(UserError, match=rf"the kind \[{old}\] is now called \[{now}\]; rename it"):
        Zoo.load(registry)


@pytest.mark.parametrize(("kind", "old", "now"), [(*place, now) for place, now in old_names.COMPONENTS.items()])
def test_an_old_component_is_answered(kind, old, now):
    assert old not in ZOO.names(kind)
    assert now in ZOO.names(kind)
    with pytest.raises(UserError, match=f"unknown {kind} '{old}': it is now called '{now}'$"):
        ZOO.spec(kind, old)


@pytest.mark.parametrize(("owner", "old", "now"), KEYS)
def test_an_old_key_is_answered(owner, old, now):
    named = [ZOO.component(kind, owner) for kind in KINDS if owner in ZOO.names(kind)]
    found = [
        cls
        for cls in [*named, *([SECTIONS[owner]] if owner in SECTIONS else [])]
        if now in {f.name for f in fields_of(cls)}
    ]
    assert found, "nothing has the new key"
    for cls in found:
        assert old not in {field.name for field in fields_of(cls)}
        _, problems = structure(cls, {old: 1}, owner, ZOO)
        assert f"{owner}.{old}: was renamed to {owner}.{now}" in map(str, problems)


def test_a_key_that_a_component_never_had_is_not_answered_so():
    """`cosine` is a noise, too, which has no `min_lr_ratio`."""
    _, problems = structure(ZOO.component("noise", "cosine"), {"final_rate": 1}, "noise", ZOO)
    assert "is not a parameter of 'cosine'" in str(problems[0])


def _commands():
    for module, function, _ in COMMANDS.values():
        command = getattr(import_module(f"atat_zoo.cli.{module}"), function)
        yield from command.commands.values() if isinstance(command, click.Group) else [command]


def _advice(command, flag, *words, monkeypatch):
    monkeypatch.setattr("sys.argv", ["atat", command.name, "x", flag, *words])
    return _instead(click.NoSuchOption(flag, ctx=click.Context(command)))


@pytest.mark.parametrize(("old", "now"), old_names.FLAGS.items())
def test_an_old_flag_is_answered_where_the_new_one_is(old, now, monkeypatch):
    assert not [command.name for command in _commands() if any(old in each.opts for each in command.params)]
    command = click.Command("mine", params=[click.Option([now])])
    assert _advice(command, old, monkeypatch=monkeypatch) == f"{old} was renamed to {now}"
    assert _advice(click.Command("mine"), old, monkeypatch=monkeypatch) == ""


@pytest.mark.parametrize(("name", "flag", "key"), SETTINGS)
def test_an_option_that_is_a_key_is_answered_with_the_key(name, flag, key, monkeypatch):
    command = click.Command(name)
    for words in ((flag, "3", "y"), (f"{flag}=3", "y")):
        monkeypatch.setattr("sys.argv", ["atat", name, "x", *words])
        said = _instead(click.NoSuchOption(flag, ctx=click.Context(command)))
        assert said == f"atat {name} has no option {flag}; pass the key {key}=3 without dashes"
    table = load("mdlm").to_table()
    for part in key.split("."):
        assert part in table or key == "init_from"
        table = table.get(part, {})


def test_the_command_line_says_so(atat):
    code, _, err = atat("train", "quickstart", "--steps", "3")
    assert code == 2
    assert re.match("error: atat train has no option --steps; pass the key train.steps=", err)
    code, _, err = atat("sample", "run", "--number", "3")
    assert (code, err) == (2, "error: --number was renamed to --num-samples\n")


@pytest.mark.parametrize(("habit", "use"), old_names.COMMANDS.items())
def test_the_commands_of_other_tools_are_known(habit, use):
    known = {*COMMANDS, *packages.PACKAGES}
    assert habit not in known
    assert set(re.findall(r"\batat ([\w-]+)", use)) <= known
    with pytest.raises(click.UsageError, match=re.escape(f"unknown command '{habit}'; use: {use}")):
        packages.command(habit, list(COMMANDS))


def test_a_table_of_another_kind_is_answered_with_what_to_extend(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "atat"\n[masking]\nuse = "importance"\n')
    with pytest.raises(
        UserError, match=r"does not use the kind masking; remove .masking., or extend mdlm, whose objective does$"
    ):
        load(str(path))
    path.write_text('extends = "mdlm"\nestimator = "frequency"\n[masking]\nuse = "importance"\n')
    assert load(str(path)).parts["masking"].name == "importance"
