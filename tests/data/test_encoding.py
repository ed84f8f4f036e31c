"""Encoding in several processes: the bytes of one, and nothing left of them, however they end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from in_memory import Memory, experiment_of, hashes, texts

from atat_zoo.data import build as building
from atat_zoo.data import sequence_packing, shard_manifest
from atat_zoo.data.build import Encoder, Throughput, build
from atat_zoo.data.sequence_packing import Form, Packer, Piece
from atat_zoo.data.tokenizers.components import BPETokenizer, BytesTokenizer, CharactersTokenizer
from atat_zoo.data.tokenizers.tokenizer_models import BytesModel
from atat_zoo.registry import component
from atat_zoo.system.errors import UserError

pytestmark = pytest.mark.slow

TEXTS = texts(150)


class Mortal(BytesModel):
    """Kills the process that encodes a certain document, as long as a file is there."""

    def encode_batch(self, batch):
        if any(text.startswith("document 77:") for text in batch) and Path(os.environ["DEADLY"]).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_batch(batch)


@component
class MortalTokenizer(BytesTokenizer):
    """Bytes, with that model."""

    name = "mortal"
    summary = "for tests"
    refs = ()

    def train(self, documents):
        return Mortal()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(sequence_packing, "BATCH", 7)
    yield
    assert multiprocessing.active_children() == []


LIMITED = {"sequences": 150, "special_tokens": "both", "remainder": "pad", "length": 17}


def test_a_process_encodes_the_batch_that_it_is_sent(monkeypatch):
    monkeypatch.setattr(building, "_job", [(BytesModel(), Form("uint16"))])
    encoded, seconds = building._encode([Piece(text, joined=False, last=True) for text in TEXTS[:3]])
    assert encoded.tokens.tolist() == list("".join(TEXTS[:3]).encode())
    assert seconds >= 0


@pytest.mark.parametrize(("processes", "data"), [(2, {"packing": "document", "special_tokens": "both"}), (3, LIMITED)])
def test_the_bytes_do_not_depend_on_the_processes(tmp_path, processes, data):
    settings = {"corpus": Memory(train=TEXTS), "tokenizer": BPETokenizer(vocabulary_size=300), **data}
    one = build(experiment_of(tmp_path / "1", **settings))
    counted = Throughput()
    many = build(experiment_of(tmp_path / "n", **settings), processes=processes, throughput=counted)
    assert hashes(one) == hashes(many)
    least = sum(split.bytes for split in shard_manifest.load(one).splits.values())
    assert least <= counted.bytes <= least + 7 * max(map(len, TEXTS))  # one more, to see the limit
    assert min(counted.seconds, counted.core_seconds) > 0


def test_a_bounded_number_of_batches_is_on_its_way(tmp_path):
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield [sequence_packing.Piece(f"batch {read}", False, True)]

    BytesModel().save(tmp_path)
    packer = Packer(BytesModel(), length=4, special="none", remainder="drop", dtype="uint16")
    encoder = Encoder(2)
    with encoder.of(BytesTokenizer(), tmp_path, packer):
        for number, found in enumerate(encoder.encoded(endless()), 1):
            assert bytes(found.tokens.tolist()).decode() == f"batch {number}"
            assert read <= number + 4
            if number == 30:
                break


def test_what_lies_in_the_working_folder_is_not_imported(tmp_path, monkeypatch):
    for name in ("multiprocessing", "pickle", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise ImportError\n")
    monkeypatch.chdir(tmp_path)
    folder = build(experiment_of(tmp_path, corpus=Memory(train=TEXTS)), processes=2)
    assert shard_manifest.load(folder).splits["train"].bytes
    assert not (tmp_path / "ran").exists()
    assert "PYTHONSAFEPATH" not in os.environ


def test_a_killed_process_ends_the_build_which_continues(tmp_path, monkeypatch):
    monkeypatch.setenv("DEADLY", str(tmp_path / "deadly"))
    settings = {"corpus": Memory(train=TEXTS), "tokenizer": MortalTokenizer()}
    whole = build(experiment_of(tmp_path / "1", **settings))
    (tmp_path / "deadly").touch()
    made = experiment_of(tmp_path / "2", **settings)
    with pytest.raises(UserError, match=r"an encoding process was killed, .* to resume the build"):
        build(made, processes=2)
    (tmp_path / "deadly").unlink()
    assert multiprocessing.active_children() == []
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("2/*.partial/*.tar")}
    folder = build(made, processes=2)
    assert hashes(folder) == hashes(whole)
    assert {name: (folder / name).stat().st_mtime_ns for name in kept} == kept


def test_a_mistake_in_the_text_is_passed_on_from_another_process(tmp_path):
    corpus = Memory(train=("only letters",) * 20 + ("a digit, 7",))
    with pytest.raises(UserError, match="tokenizer 'characters' can encode only the space and a to z, not"):
        build(experiment_of(tmp_path, corpus=corpus, tokenizer=CharactersTokenizer()), processes=2)


SCRIPT = """
import multiprocessing, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_encoding import TEXTS
from in_memory import Memory, experiment_of
from atat_zoo.data import sequence_packing
from atat_zoo.data.build import build
sequence_packing.BATCH = 7
def end(stage, done, total):
    if stage == "train" and done > 3000:
        print(*(process.pid for process in multiprocessing.active_children()), flush=True)
        os.killpg(0, signal.SIGINT) if sys.argv[3] == "SIGINT" else os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    try:
        build(experiment_of(Path(sys.argv[1]), corpus=Memory(train=TEXTS)), processes=2, progress=end)
    except KeyboardInterrupt:
        assert multiprocessing.active_children() == []
        sys.exit(130)
"""


def runs(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_nothing_is_left_when_the_first_process_ends(tmp_path, sent, code):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "2"), str(Path(__file__).parent), sent]
    ended = subprocess.run(command, capture_output=True, check=False, text=True, start_new_session=True)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    processes = ended.stdout.split()
    assert len(processes) == 2
    late = time.monotonic() + 60
    while any(map(runs, processes)):
        assert time.monotonic() < late
        time.sleep(0.05)
    one, two = (experiment_of(tmp_path / name, corpus=Memory(train=TEXTS)) for name in "12")
    assert hashes(build(two)) == hashes(build(one))
