"""GLUE by the task of atat-zoo-glue: an imported model is fine-tuned as a native network is, all nine tasks."""

import pytest
from atat_zoo_checkpoints.model_import import import_model
from atat_zoo_glue.glue_files import PROBLEMS
from atat_zoo_glue.miniature import write
from atat_zoo_glue.task import MAJORITY, GlueTask
from models import small

from atat_zoo import Model

NINE = {"epochs": 8, "learning_rate": 1e-2, "batch_size": 16, "length": 32}


def measured(folder, name, **parameters):
    """Return the scores of a small model's run on the miniature of GLUE."""
    small(name, folder / "model")
    import_model(str(folder / "model"), folder / "run")
    task = GlueTask(path=str(write(folder / "glue")), **parameters)
    return task.measure(Model.from_run(folder / "run", "cpu"), folder / "run", seed=3)


@pytest.mark.slow
def test_bert_beats_the_most_frequent_class_on_all_nine(tmp_path):
    found = measured(tmp_path, "bert", **NINE)
    assert [*dict.fromkeys(name.split()[0] for name in found)] == [*PROBLEMS, "average"]
    assert found["average"].value > found[MAJORITY].value + 0.15


@pytest.mark.parametrize("name", ["roberta", "modernbert", "distilbert"])
def test_other_architectures_take_pairs_and_numbers(name, tmp_path):
    found = measured(tmp_path, name, tasks=("stsb",), epochs=1)
    assert list(found) == ["stsb pearson", "stsb spearman", "average", MAJORITY]
