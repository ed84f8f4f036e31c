"""A plugin of forty lines adds an optimizer, a schedule, a logger and an objective, as good as those of the zoo."""

import itertools

import pytest

from atat_zoo.registry import Zoo
from atat_zoo.testing import cases
from tests import forked
from tests.installing import alone, install

__all__ = ["alone", "install"]

SOURCES = {
    "objective": '''
@component
class FocalObjective:
    """The loss of a token by how unsure the model is of it."""
    name, refs, uses, exact = "focal", (), frozenset({"backbone", "noise"}), False
    summary = "less loss where the model is sure"
    def build(self, context, parts, batch_size):
        from atat_zoo.objectives.denoising import DenoisingModule, metrics, normalised
        class Focal(DenoisingModule):
            def loss(self, batch):
                self.begin(batch)
                step = self.masked_uniformly(batch, self.times(batch.index))
                ce = self.dense_cross_entropy(step)
                return metrics(step, ce, normalised((1 - (-ce.detach()).exp()) * ce, batch))
        return Focal(context, parts, batch_size)
atat_zoo_objective = hookimpl(lambda: [FocalObjective])
''',
    "optimizer": '''
@component
class SGDOptimizer:
    """Gradient descent with momentum."""
    name, summary, refs = "sgd", "gradient descent with momentum", ()
    def build(self, model):
        from torch.optim import SGD
        return SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
atat_zoo_optimizer = hookimpl(lambda: [SGDOptimizer])
''',
    "schedule": '''
@component
class InverseRootSchedule:
    """Falls with the root of the step."""
    name, summary, refs = "inverse_root", "falls with the root of the step", ("arXiv:1706.03762",)
    def build(self, optimizer, steps):
        from torch.optim.lr_scheduler import LambdaLR
        return LambdaLR(optimizer, lambda step: (1 + step) ** -0.5)
atat_zoo_schedule = hookimpl(lambda: [InverseRootSchedule])
''',
    "logger": '''
@component
class LinesLogger:
    """A text file of its own."""
    name, summary, refs = "lines", "a text file of its own", ()
    def build(self, folder):
        from composer.loggers import FileLogger
        return FileLogger(str(folder / "lines.txt"), capture_stdout=False, capture_stderr=False, flush_interval=1)
atat_zoo_logger = hookimpl(lambda: [LinesLogger])
''',
}
PLUGIN = "from atat_zoo.registry import component, hookimpl\n" + "".join(SOURCES.values())

EXPERIMENT = """
corpus = {use = "files", train = ["text.txt"], document = "line"}
tokenizer = "characters"
objective = "focal"
optimizer = "sgd"
schedule = "inverse_root"
backbone = {layers = 1, width = 16, heads = 2}
data = {length = 16, lanes = 2}
train = {steps = 3, batch_size = 4, loggers = ["lines"]}
evaluation = {sequences = 2, draws = 1, samples = 0}
"""


def test_each_part_is_held_by_the_suite_of_its_kind(install):
    assert len([line for line in PLUGIN.splitlines() if line.strip()]) <= 40
    install("forty", PLUGIN)
    held = cases(Zoo.load(), distribution="atat-zoo-forty")
    assert {case.kind for case in held} == set(SOURCES)
    for case in held:
        if case.promise != "imports":  # in a process of its own
            case.run()


@pytest.mark.slow
def test_they_train(install, tmp_path):
    install("forty", PLUGIN)
    (tmp_path / "text.txt").write_text(
        "\n".join(" ".join(words) for words in itertools.permutations(["we", "keep", "a", "just", "peace"]))
    )
    (tmp_path / "forty.toml").write_text(EXPERIMENT)
    done = forked.run(["train", "forty.toml", "--out", "run"], tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "focal" in (tmp_path / "run" / "resolved.toml").read_text()
    assert "loss" in "".join(path.read_text() for path in (tmp_path / "run").rglob("lines.txt"))
