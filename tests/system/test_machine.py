"""Sizes that a person gives: refused by a sentence, before the memory is asked for."""

import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from composer.utils import get_composer_env_dict

from atat_zoo.data.tokenizers.components import BPETokenizer
from atat_zoo.data.tokenizers.tokenizer_models import BytesModel
from atat_zoo.experiment import load
from atat_zoo.generation.samplers.semi_autoregressive import SemiAutoregressiveSampler
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.registry import Context
from atat_zoo.system import environment, machine
from atat_zoo.system.errors import UserError
from atat_zoo.testing.toys import Hashed
from atat_zoo.training.memory import check
from tests import forked
from tests.limited import limited

CONTEXT = Context(vocabulary_size=258, length=16, width=32)


def test_the_memory_is_what_there_is_and_what_a_limit_or_a_container_leaves(tmp_path, monkeypatch):
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < machine.memory() <= int(total.split()[1]) * 1024
    with limited(1 << 28):
        assert 1 << 27 < machine.memory() <= 1 << 28
    for name, text in (("none", "max\n"), ("limit", "5000000\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_CGROUPS", [str(tmp_path / name) for name in ("none", "limit", "missing")])
    assert machine.memory() == 5_000_000
    machine.require(5_000_000, "it", "this", "lower it")
    with pytest.raises(
        UserError, match=r"^it needs about 1,000\.0 GB just for this, but this machine has only 0\.0 GB free; lo"
    ):
        machine.require(10**12, "it", "this", "lower it")


def test_the_cores_are_those_that_this_process_may_use_or_else_all(monkeypatch):
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda process: {1, 5}, raising=False)
    assert machine.cores() == 2
    monkeypatch.delattr(machine.os, "sched_getaffinity")  # as on macOS
    assert machine.cores() == 8
    monkeypatch.setattr(machine.os, "cpu_count", lambda: None)
    assert machine.cores() == 1


@pytest.mark.parametrize("ask", [lambda: torch.empty(2**60), lambda: torch.empty(2**62, 2**62), lambda: bytes(2**62)])
def test_an_error_for_lack_of_memory_is_known(ask):
    with pytest.raises((RuntimeError, MemoryError)) as error:
        ask()
    assert machine.ran_out(error.value)
    assert not machine.ran_out(RuntimeError("shapes cannot be multiplied"))


@pytest.mark.slow
@pytest.mark.parametrize("raised", ["MemoryError()", "RuntimeError('[enforce fail] can\\'t allocate memory: 8 bytes')"])
def test_a_command_without_enough_memory_ends_with_a_sentence(tmp_path, raised):
    code = f"import atat_zoo.cli as cli, click\n@click.command()\ndef it(): raise {raised}\ncli.run(it, 'it')"
    done = forked.run([], tmp_path, code=code)
    assert done.returncode == 2, done
    assert done.stderr.startswith("error: out of memory; reduce the batch size")


@pytest.mark.parametrize(
    "settings",
    [
        {"width": 2**40, "heads": 1},
        {"layers": 10_000, "width": 2**20, "heads": 1},
        {"mlp_ratio": 1e308},
        {"width": 2**21, "heads": 1, "layers": 1, "tied": True},
    ],
)
def test_a_backbone_that_is_too_large(settings):
    with pytest.raises(UserError, match=r"^a backbone of .* needs about [\d,.inf]+ GB just for its weights, but this"):
        DiTBackbone(**settings).build(CONTEXT)


def test_a_micro_batch_that_is_too_large(tiny, tmp_path, monkeypatch):
    keep = 4 * 1 * 32 * 8 * 16  # float32, layers, width, rows, length
    made = load(str(tiny.path), ["train.batch_size=8", "train.microbatch_size=8", f"data.root={tmp_path / 'no'}"])
    assert (*made.parts["backbone"].shape[:2], made.data.length) == (1, 32, 16)
    monkeypatch.setattr(machine, "memory", lambda: keep - 1)
    with pytest.raises(UserError, match=r"^computing 8 sequences at once needs .* lower train\.microbatch_size$"):
        check(made, "cpu", 1)
    check(made, "cpu", 2)
    check(made, "cuda", 1)
    monkeypatch.setattr(machine, "memory", lambda: keep)
    check(made, "cpu", 1)


def test_composer_starts_no_process_for_the_name_of_the_processor(monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("it takes a second and a half"))
    assert get_composer_env_dict()["cpu_model"] == environment.machine()["processor"]


@pytest.mark.parametrize(("number", "length"), [(2**40, None), (1, 2**40), (2**70, None)])
def test_texts_that_are_too_many_or_too_long(number, length):
    text_generator = TextGenerator(denoiser=Hashed(258, window=4), tokenizer=BytesModel(), length=4)
    with pytest.raises(UserError, match=r"^generating \d+ sequences? of \d+ tokens needs about"):
        text_generator.write(SemiAutoregressiveSampler(block_size=4), number=number, length=length)


def test_a_vocabulary_that_is_too_large():
    with pytest.raises(ValueError, match="vocabulary_size must be at most 2147483648"):
        BPETokenizer(vocabulary_size=2**40)
    code = (
        "from atat_zoo.data.tokenizers.components import BPETokenizer; "
        "BPETokenizer(vocabulary_size=2**31).train(lambda: iter('text'))"
    )
    words = [sys.executable, "-c", code]  # the library would abort the process
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = "UserError: tokenizer.vocabulary_size = 2147483648 needs about 300.6 GB just for its table"
    assert done.stderr.splitlines()[-1].partition("atat_zoo.system.errors.")[2].startswith(said), done


def test_without_proc_the_memory_of_the_machine_counts_as_free(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: 7)
    assert machine.free_memory() <= 7
    for gone in (OSError("no such file"), None):
        monkeypatch.setattr(Path, "read_text", mock.Mock(side_effect=gone, return_value="MemTotal: 1 kB\n"))
        assert machine.free_memory() == 7
    monkeypatch.setattr(Path, "read_text", mock.Mock(return_value="MemAvailable: 0 kB\n"))
    assert machine.free_memory() == 0


def test_a_package_is_installed_from_its_folder_in_a_checkout_and_by_name_elsewhere(monkeypatch, tmp_path):
    own = Path(machine.__file__).parents[2] / "plugins" / "atat-zoo-serve"
    assert machine.install_command("atat-zoo-serve") == f"pip install -e {own}"
    assert machine.install_command("atat-zoo-spirals") == "pip install atat-zoo-spirals"
    folder = tmp_path / "my packages"
    monkeypatch.setattr(machine, "__file__", str(folder / "atat_zoo" / "system" / "machine.py"))
    assert machine.install_command("atat-zoo-serve") == "pip install atat-zoo-serve"
    (folder / "plugins" / "atat-zoo-serve").mkdir(parents=True)
    (folder / "plugins" / "atat-zoo-serve" / "pyproject.toml").touch()
    assert machine.install_command("atat-zoo-serve") == f"pip install -e '{folder}/plugins/atat-zoo-serve'"
