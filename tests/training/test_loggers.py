"""What a training tells its loggers, what callbacks and algorithms add, and what is refused before work begins."""

import json
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from composer.loggers import LoggerDestination

from atat_zoo import Zoo
from atat_zoo.errors import UserError
from atat_zoo.experiment import load
from atat_zoo.training import resume, train
from atat_zoo.training.evaluator import PatienceStopper
from tests.training.test_resume import unfinished

MONITORS = '["lr_monitor", {use="optimizer_monitor", every=1}, {use="speed_monitor", window=1}, "memory_monitor"]'


class Stub(LoggerDestination):
    """Records what it is told."""

    def __init__(self):
        self.metrics = {}
        self.histograms = {}
        self.closed = False

    def log_metrics(self, metrics, step=None):
        assert step is not None
        self.metrics.setdefault(step, {}).update(metrics)

    def log_histogram(self, name, values, step):
        self.histograms[step, name] = values

    def close(self, state, logger):
        self.closed = True


@pytest.fixture
def stub(monkeypatch):
    """A destination that stands in for the file's."""
    made = Stub()
    monkeypatch.setattr("atat_zoo.training.loggers.FileLogger.build", lambda self, folder: made)
    return made


@pytest.mark.slow
def test_a_logger_gets_the_curves_and_what_callbacks_measure(tiny, tmp_path, stub):
    said = ["train.steps=4", "train.log_every=2", "train.evaluate_every=2", 'train.loggers=["file"]']
    said += [f"train.callbacks={MONITORS}", 'evaluation.metrics=["brier_score"]', "backbone.layers=2"]
    result = train(load(str(tiny.path), said), tmp_path / "run")
    assert stub.closed
    assert 0 < stub.metrics[2]["validation/brier_score"] < 2
    lines = {line["step"]: line for line in result.folder.read_metrics()}
    assert list(lines) == [2, 4]
    for step, line in lines.items():
        curves = stub.metrics[step]
        assert curves["train/loss"] == line["loss"]
        assert curves["train/mask_rate"] == line["mask_rate"]
        assert curves["train/mask_rate_target"] == line["mask_rate_target"]
        assert curves[f"train/stage/{line['stage']}"] == 1
        assert curves["train/curriculum_strength"] == line["curriculum_strength"]
        rates = stub.histograms[step, "train/mask_rates"]
        assert line["mask_rates"] == [int(((rates >= i / 20) & (rates < (i + 1) / 20)).sum()) for i in range(20)]
        assert "train/mask_rates" not in curves
        assert 0 <= curves["train/importance_mean"] <= 1
        assert 0 <= curves["train/importance_spread"] <= 0.5
        importance, loss = (stub.histograms[step, f"train/{name}"] for name in ("importance", "token_loss"))
        assert importance.shape == loss.shape
        assert loss.mean() == pytest.approx(line["cross_entropy"], rel=1e-4)
        # Of the callbacks, here and in metrics.jsonl.
        assert line["lr-Muon/group0"] == line["learning_rate"]
        assert line["l2_norm/grad/global"] == stub.metrics[step]["l2_norm/grad/global"] > 0
        assert line["throughput/tokens_per_sec"] > 0
        # Each number has one name: none of Composer's beside ours, none of a callback's below `train/`, none a tensor.
        assert not [
            name for name in curves if name.startswith(("loss/", "train/lr-", "train/l2_norm", "train/through"))
        ]
        assert [name for name in curves if name.startswith("l2_norm")] == ["l2_norm/grad/global"]
    final = json.loads(next(result.folder.evaluations.glob("*step00000004.json")).read_text())
    assert stub.metrics[4]["validation/nelbo"] == final["perplexity"]
    assert "validation/nelbo" in stub.metrics[2]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adafactor", "muon"])
def test_a_run_with_all_of_them_continues_bit_for_bit(tiny, tmp_path, optimizer):
    said = ["train.steps=6", "train.save_every=3", 'train.loggers=["file"]', f"train.callbacks={MONITORS}"]
    said += ['train.algorithms=["gradient_clipping"]', f"optimizer.use={optimizer}", "schedule.use=wsd"]
    straight = train(load(str(tiny.path), said), tmp_path / "straight").folder.path
    continued = resume(unfinished(tiny, straight, f"cut-{optimizer}", step=3)).folder.path

    def curves(run):
        lines = tiny.losses(run).values()
        return [{name: v for name, v in line.items() if not name.startswith(("time/", "through"))} for line in lines]

    assert curves(continued) == curves(straight)
    assert tiny.weights(continued) == tiny.weights(straight)
    first, second = (sorted((folder / "logs").iterdir()) for folder in (straight, continued))
    assert [path.name for path in second] == ["log-0-rank0.txt", "log-1-rank0.txt"]
    assert second[0].read_text() == first[0].read_text()
    assert "train/importance_mean" in second[1].read_text()


@pytest.mark.slow
def test_a_run_that_stops_early_is_finished(tiny, tmp_path, monkeypatch):
    said = ["train.steps=12", "train.evaluate_every=2", 'train.callbacks=[{use="early_stopper", patience=2}]']
    # So small a rate changes no weight: the perplexity stays.
    slow = 'optimizer={use="adamw", learning_rate=1e-30}'
    result = train(load(str(tiny.path), [*said, slow, "train.ema=0"]), tmp_path / "run")
    assert (result.finished, result.step) == (True, 6)
    assert [line["step"] for line in result.folder.read_metrics()][-1] == 6
    assert result.folder.last_checkpoint().step == 6
    again = resume(tmp_path / "run")
    assert (again.finished, again.step) == (True, 6)


def test_patience_counts_evaluations_without_a_new_best():
    stopped = []
    state = SimpleNamespace(stop_training=lambda: stopped.append(True))
    stopper = PatienceStopper(2)
    for perplexity in (9.0, 8.0, 8.0, 7.0, 7.5):
        stopper.evaluated(perplexity, state)
    assert not stopped
    other = PatienceStopper(2)
    other.load_state_dict(stopper.state_dict())
    other.evaluated(float("nan"), state)
    assert stopped


def test_an_early_stop_needs_evaluations(tiny):
    with pytest.raises(UserError, match=r"early_stopper goes by evaluations; set train\.evaluate_every"):
        load(str(tiny.path), ['train.callbacks=["early_stopper"]'])


@pytest.mark.parametrize(
    ("override", "package"),
    [
        ('train.loggers=["wandb"]', "wandb"),
        ('train.loggers=["file", "tensorboard"]', "tensorboard"),
        ('train.loggers=[{use="mlflow"}]', "mlflow"),
        ("optimizer.use=lion", "lion_pytorch"),
    ],
)
def test_a_missing_package_is_named_before_work_begins(tiny, tmp_path, override, package, monkeypatch):
    def without(name):
        return None if name == package else find_spec(name)

    monkeypatch.setattr("atat_zoo.system.machine.find_spec", without)
    experiment = load(str(tiny.path), [override, f'data.root="{tmp_path}/shards"'])
    with pytest.raises(UserError, match=rf"needs the package {package}; install it with `pip install 'atat-zoo\["):
        train(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "shards").exists()


def test_tensorboard_gets_scalars_and_histograms(tmp_path, monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, log_dir, flush_secs):
            calls.append(log_dir)

        def add_scalar(self, *words, global_step):
            calls.append((*words, global_step))

        add_histogram = add_scalar

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    made = Zoo.load().spec("logger", "tensorboard").build(tmp_path)
    made.init(SimpleNamespace(run_name="mine"), None)
    made.log_metrics({"train/loss": 0.5}, step=3)
    made.log_histogram("train/importance", "values", step=3)
    assert calls == [tmp_path / "mine", ("train/loss", 0.5, 3), ("train/importance", "values", 3)]


def test_wandb_gets_its_options_and_histograms(tmp_path, monkeypatch):
    calls = []
    run = SimpleNamespace(dir="", entity="me", project="p", get_url=lambda: "")
    stub = SimpleNamespace(
        run=run,
        init=lambda **options: calls.append(options),
        log=lambda metrics, step: calls.append((metrics, step)),
        Histogram=lambda values: ("histogram", values),
    )
    monkeypatch.setitem(sys.modules, "wandb", stub)
    made = Zoo.load().spec("logger", {"use": "wandb", "project": "p", "tags": ["a"]}).build(tmp_path)
    made.init(SimpleNamespace(run_name="mine"), None)
    made.log_histogram("train/importance", torch.tensor([0.25, 0.5]), step=3)
    assert calls[0] == {"project": "p", "tags": ["a"], "dir": str(tmp_path), "name": "mine"}
    assert calls[1] == ({"train/importance": ("histogram", [0.25, 0.5])}, 3)


def test_lion_takes_the_groups(monkeypatch):
    stub = SimpleNamespace(Lion=lambda groups, **options: SimpleNamespace(groups=groups, **options))
    monkeypatch.setitem(sys.modules, "lion_pytorch", stub)
    made = Zoo.load().spec("optimizer", {"use": "lion", "weight_decay": 0.1}).build(torch.nn.Linear(2, 3))
    assert (made.lr, made.betas) == (3e-5, (0.9, 0.99))
    assert [group["weight_decay"] for group in made.groups] == [0.1, 0.0]
