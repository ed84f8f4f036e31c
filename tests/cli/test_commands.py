"""`atat` and its commands about parts and experiments: what is printed, where, and with which exit code."""

import json
import os
import subprocess
import tomllib

import click
import pytest

from atat_zoo import Zoo, __version__
from atat_zoo.cli import COMMANDS, run
from atat_zoo.cli import atat as group
from atat_zoo.cli.console import Bars
from atat_zoo.experiment import load
from atat_zoo.registry import KINDS, registry_file
from tests.cli.terminal import imported, on_terminal, printed, refused, spawned
from tests.installing import alone, install

__all__ = ["alone", "install"]


@pytest.fixture
def experiment(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_every_command_takes_a_gpu_if_there_is_one():
    commands = [group.get_command(None, name) for name in COMMANDS]
    commands += [inner for command in commands for inner in getattr(command, "commands", {}).values()]
    taken = {command.name: o.default for command in commands for o in command.params if o.name == "device"}
    assert taken.keys() >= {"eval", "sample", "infill", "judge", "compare", "importance", "samplers", "study"}
    assert set(taken.values()) == {"auto"}


# The parts


def test_zoo_list_names_every_part(atat):
    out = printed(atat, "zoo", "list")
    lines = out.splitlines()
    assert lines[0].split() == ["kind", "name", "summary"]
    zoo = Zoo.load()
    expected = [(kind, name) for kind in KINDS for name in zoo.names(kind)]
    assert [tuple(line.split()[:2]) for line in lines[1:]] == expected
    assert all(zoo.describe(kind, name).summary in out for kind, name in expected)
    assert not any(line.endswith(" ") for line in lines)
    parts = json.loads(atat("zoo", "list", "--json")[1])
    assert [(part["kind"], part["name"]) for part in parts] == expected
    assert all(part.keys() == {"kind", "name", "summary", "distribution"} for part in parts)
    assert json.loads(atat("zoo", "list", "noise", "--json")[1]) == [part for part in parts if part["kind"] == "noise"]


def test_zoo_show_documents_a_part(atat):
    out = printed(atat, "zoo", "show", "masking", "importance")
    entry = Zoo.load().describe("masking", "importance")
    assert out.startswith(f"masking importance: {entry.summary}\nfrom atat-zoo, {entry.path}\nsee {entry.refs[0]}")
    for name, parameter in entry.parameters.items():
        (line,) = [line for line in out.splitlines() if line.startswith(f"{name} ")]
        assert all(text in line for text in (parameter["type"], str(parameter["default"]), parameter["help"]))
    assert "(≥ 1e-06, ≤ 1e+09)" in out
    assert "This component has no parameters." in atat("zoo", "show", "masking", "uniform")[1]
    assert "(required)" in atat("zoo", "show", "corpus", "files")[1]
    shown = json.loads(atat("zoo", "show", "masking", "importance", "--json")[1])
    assert (shown["parameters"], shown["path"], shown["refs"]) == (entry.parameters, entry.path, list(entry.refs))
    # An alias.
    assert json.loads(atat("zoo", "show", "masking", "time_only", "--json")[1])["name"] == "uniform"


def test_a_broken_plugin_is_listed_and_breaks_nothing(install, atat, monkeypatch):
    install("broken", "raise RuntimeError('no such luck')")
    (broken,) = json.loads(atat("zoo", "plugins", "--json")[1])
    assert (broken["name"], broken["status"], broken["distribution"]) == ("broken", "broken", "atat-zoo-broken")
    assert broken["error"] == "RuntimeError: no such luck"
    code, out, err = atat("zoo", "list", "noise")
    assert (code, "linear" in out) == (0, True)
    assert err == "plugin broken from atat-zoo-broken is broken: RuntimeError: no such luck\n"
    assert refused(atat, "zoo", "check").startswith("error: plugin broken from atat-zoo-broken: RuntimeError")
    monkeypatch.setenv("ATAT_ZOO_PLUGINS", "")
    rows = json.loads(printed(atat, "zoo", "plugins", "--json"))
    assert [(row["status"], row["parts"]) for row in rows] == [("disabled", [])]
    # All of ours are imported.
    count = sum(len(Zoo.load().names(kind)) for kind in KINDS)
    assert printed(atat, "zoo", "check") == f"{count} components of {len(KINDS)} kinds agree with registry.toml\n"


def test_zoo_manifest_agrees_with_the_code_and_can_be_written(atat, tmp_path, monkeypatch):
    assert printed(atat, "zoo", "manifest") == f"{registry_file.shipped()} agrees with the code\n"
    path = tmp_path / "registry.toml"
    text = registry_file.shipped().read_text(encoding="utf-8").replace('time_only = "uniform"', 'old_name = "uniform"')
    path.write_text(text.replace("summary = ", "summary = 'x' #"))
    monkeypatch.setattr(registry_file, "shipped", lambda: path)
    differs = f"error: {path} differs from the code; run `atat zoo manifest --write` and review the change"
    assert refused(atat, "zoo", "manifest") == differs
    printed(atat, "zoo", "manifest", "--write")
    # The parts are the code's again; what is edited by hand is kept.
    assert path.read_text(encoding="utf-8") == text


# Experiments


def test_check_says_which_packages_are_missing(atat, experiment, tmp_path, monkeypatch):
    monkeypatch.setattr("atat_zoo.system.machine.find_spec", lambda name: None)
    for name in ("a.parquet", "b.jsonl.zst", "c.txt"):
        (tmp_path / name).touch()
    each = [f'{{use="files",train=["{tmp_path}/{name}"]}}' for name in ("a.parquet", "b.jsonl.zst", "c.txt")]
    table = f'[corpus]\nuse = "mixture"\ncomponents = [{", ".join(each)}]\n'
    loggers = '[[train.loggers]]\nuse = "wandb"\nproject = "x"\n'
    out = printed(atat, "check", experiment(f'{table}[optimizer]\nuse = "lion"\n{loggers}'))
    needs = [("files", "pyarrow", "parquet"), ("files", "zstandard", "zstd")]
    needs += [("lion", "lion_pytorch", "lion"), ("wandb", "wandb", "wandb")]
    assert out.splitlines()[1:] == [
        f"missing: {name} needs the package {module}; install it with `pip install 'atat-zoo[{extra}]'`"
        for name, module, extra in needs
    ]


def test_check_says_which_files_and_which_packages_are_missing(atat, experiment, tmp_path, monkeypatch):
    monkeypatch.setattr("atat_zoo.system.machine.find_spec", lambda name: None)
    (tmp_path / "b.txt").touch()
    each = [f'{{use="files",train=["{tmp_path}/{name}"]}}' for name in ("a.parquet", "b.txt")]
    out = printed(atat, "check", experiment(f'[corpus]\nuse = "mixture"\ncomponents = [{", ".join(each)}]'))
    files, package = out.splitlines()[1:]
    assert files.startswith("missing: corpus.train: ")
    assert "a.parquet" in files
    assert package == "missing: files needs the package pyarrow; install it with `pip install 'atat-zoo[parquet]'`"


def test_check_says_all_that_is_wrong_or_that_nothing_is(atat, experiment):
    out = printed(atat, "check", experiment('masking = "importance"\nestimator = "frequency"'), "seed=3")
    assert out.startswith("mine is valid and uses ")
    assert "masking importance" in out
    code, out, err = atat("check", experiment("[train]\nsteps = 'x'\nmax_grad_nrom = 1"), "data.length=0")
    assert (code, out) == (2, "")
    assert [line.startswith("error: ") for line in err.splitlines()] == [True] * 3
    assert "did you mean 'max_grad_norm'?" in err


def test_resolve_prints_an_experiment(atat, experiment, tmp_path):
    path = experiment('name = "one"\nestimator = "frequency"\n[masking]\nuse = "importance"')
    out = printed(atat, "resolve", path, "masking.temperature=0.5")
    again = tmp_path / "again.toml"
    again.write_text(out, encoding="utf-8")
    assert load(str(again)) == load(path, ["masking.temperature=0.5"])
    assert atat("resolve", str(again))[1] == out
    assert json.loads(atat("resolve", str(again), "--json")[1]) == tomllib.loads(out)


# Mistakes


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["zoo", "list", "maskin"], "error: unknown kind of component 'maskin'; did you mean 'masking'?"),
        (["check", "nothing.toml"], "error: unknown experiment 'nothing.toml'"),
        (["resolve", "quickstart", "train.steps"], "expected key=value"),
        (["chek", "x"], "unknown command 'chek'; did you mean 'check'? (commands: zoo, check, "),
        (["zoo", "lst"], "No such command 'lst'"),
        (["check"], "Missing argument 'EXPERIMENT'"),
        (["zoo", "list", "--jsn"], "No such option"),
    ],
)
def test_a_mistake_is_said_on_standard_error_with_exit_code_2(atat, words, text):
    code, out, err = atat(*words)
    assert (code, out) == (2, "")
    assert text in err
    assert len(err.splitlines()) == 1 or err.startswith("Usage: ")


BASE = '[corpus]\nuse = "files"\ntrain = ["text.txt"]\n[tokenizer]\nuse = "bytes"'
# What a person can type where a path is wanted, and where one is: each of the one with one of the other.
PATHS = ["x" * 5000, "loop", "loop/x", "~nouser/x", "file", "file/x", "folder", "\udcff", "/dev/null", ""]
TAKES_A_PATH = (
    "check {}",
    "train --resume {}",
    "eval {}",
    "compare a b --baseline {}",
    "judge folder --judge {}",
    "sample {} --trace x",
    "infill folder --file {}",
    "data build base.toml corpus.train=['{}']",
    "check base.toml tokenizer={{use='run',path='{}'}}",
    "study {}",
)
PAIRS = [*zip(TAKES_A_PATH, PATHS, strict=True), *(("eval {}", path) for path in PATHS if path != "loop/x")]
PAIRS += [("data build base.toml corpus.train=['{}']", "\udcff"), ("infill folder --file {}", "")]


@pytest.mark.parametrize(("words", "path"), PAIRS, ids=lambda part: repr(part)[:20])
def test_a_path_that_is_none_is_one_short_sentence(atat, tmp_path, monkeypatch, words, path):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    for name, text in (("file", "x"), ("text.txt", "we the people"), ("base.toml", BASE)):
        (tmp_path / name).write_text(text)
    code, _, err = atat(*(word.format(path) for word in words.split(" ")))
    (line,) = err.splitlines()
    assert (code, line.startswith("error: "), len(line) < 2000) == (2, True, True)


def test_help_and_version_import_no_command(atat):
    out = printed(atat, "--help")
    assert all(f"  {name} " in out and text in out for name, (_, _, text) in COMMANDS.items())
    assert atat("--version")[1].strip().endswith(__version__)
    for name in COMMANDS:
        assert printed(atat, name, "--help").startswith(f"Usage: atat {name} ")


@pytest.mark.parametrize(("before", "seen"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_threads_of_torch_sleep_while_they_wait_unless_the_user_says_otherwise(monkeypatch, before, seen):
    monkeypatch.setenv("OMP_WAIT_POLICY", before or "")
    if before is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    found = []
    command = click.Command("looks", callback=lambda: found.append(os.environ["OMP_WAIT_POLICY"]))
    monkeypatch.setattr("sys.argv", ["looks"])
    with pytest.raises(SystemExit):
        run(command, "looks")
    assert found == [seen]


# Processes

HEAVY = ("torch", "composer", "webdataset")


@pytest.mark.slow
def test_listing_and_checking_import_nothing_heavy():
    commands = {
        "zoo list": 0,
        "resolve quickstart": 0,
        "check quickstart train.steps=none": 2,
        "train nothing.toml": 2,
        "zoo check": 0,
        "study nothing.toml": 2,
        "ls tests": 0,
        "data get": 0,
        "data get lambda": 2,
        "--help": 0,
    }
    (first, *others) = imported([line.split() for line in commands], [*HEAVY, "atat_zoo.experiment.schema"])
    assert first == [0, []]
    assert others == [[code, ["atat_zoo.experiment.schema"]] for code in [*commands.values()][1:]]


def test_a_reader_that_goes_away_is_no_traceback():
    reader, text_generator = os.pipe()
    os.close(reader)
    done = spawned("zoo", "list", stdout=text_generator, stderr=subprocess.PIPE)
    os.close(text_generator)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
def test_a_terminal_gets_a_table():
    code, text = on_terminal("zoo", "list", "noise")
    assert code == 0
    assert "\x1b[1m" in text  # bold heads
    assert all(name in text for name in Zoo.load().names("noise"))


# Progress on a terminal


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr("atat_zoo.cli.console.on_terminal", lambda: True)
    with Bars(silent=False) as bars:
        yield bars


def test_what_has_no_known_length_has_ended_where_something_else_begins(bars):
    for stage, done in (("validation", 1), ("validation", 5), ("test", 1)):
        bars.building(stage, done, None)
    validation, test = bars.progress.tasks
    assert (validation.finished, validation.total, test.finished) == (True, 5, False)


@pytest.mark.parametrize(("stage", "said"), [("easy", "  curriculum easy"), ("none", ""), ("train", "")])
def test_a_stage_is_said_where_there_is_a_curriculum(bars, stage, said):
    bars.training(1, 2, {"loss": 2.5, "tokens_per_second": 1000.0, "stage": stage})
    assert bars.progress.tasks[0].fields["note"] == f"loss 2.500 nats/token  1,000 tokens/s{said}"
