"""The experiment on long sequences: its backbone reads a whole sequence, and it trains, here with short ones."""

from importlib import resources

from atat_zoo import Model
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.training import train

PATH = str(resources.files("atat_zoo_genomics") / "experiments" / "long.toml")
# Its shape at 512 bytes, of which 9 dilations read all.
SHORT = ["data.length=512", "backbone.layers=9", "backbone.cycle=9", "backbone.width=32", "train.batch_size=8"]
SHORT += ["train.steps=40", "train.evaluate_every=0", "train.log_every=1", "data.lanes=1", "evaluation.sequences=2"]


def test_every_position_reads_the_whole_sequence():
    for experiment in (load(PATH), load(PATH, SHORT)):
        assert experiment.parts["backbone"].reach == experiment.data.length - 1


def test_documents_longer_than_a_sequence_are_learned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"The state of the union in {year} is strong. " * 30 for year in range(1790, 1830)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    files = ['corpus={use = "files", train = ["text.txt"], document = "line"}']
    train(load(PATH, [*files, *SHORT]), tmp_path / "run")
    losses = [row["loss"] for row in RunFolder(tmp_path / "run").read_metrics() if "loss" in row]
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert Model.from_run(tmp_path / "run").context.length == 512
