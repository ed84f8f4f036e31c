"""What a training tells its loggers, what callbacks and algorithms add, and what is refused before work begins."""

import json
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from composer.loggers import LoggerDestination

from atat_zoo import Zoo
from atat_zoo.experiment import from_table, load
from atat_zoo.system.errors import UserError
from atat_zoo.training import resume, train
from atat_zoo.training.evaluator import PatienceStopper
from atat_zoo.training.metrics_writer import without_composers_loss
from tests.training.test_resume import unfinished

MONITORS = '["lr_monitor", {use="optimizer_monitor", every=1}, {use="speed_monitor", window=1}, "memory_monitor"]'
SHORT = ["train.steps=4", "train.log_every=2", "train.evaluate_every=2"]


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


@pytest.mark.slow
def test_a_logger_gets_the_curves_and_what_callbacks_measure(tiny, tmp_path, monkeypatch):
    stub = Stub()  # in place of the file's
    monkeypatch.setattr("atat_zoo.training.loggers.FileLogger.build", lambda self, folder: stub)
    said = [*SHORT, 'train.loggers=["file"]', f"train.callbacks={MONITORS}"]
    said += ['evaluation.metrics=["brier_score"]', "backbone.layers=2"]
    result = train(load(str(tiny.path), said), tmp_path / "run")
    assert stub.closed
    assert 0 < stub.metrics[2]["validation/brier_score"] < 2
    lines = {line["step"]: line for line in result.folder.read_metrics()}
    assert list(lines) == [2, 4]
    for step, line in lines.items():
        curves = stub.metrics[step]
        for name in ("loss", "mask_rate", "mask_rate_target", "curriculum_strength"):
            assert curves[f"train/{name}"] == line[name]
        assert curves[f"train/stage/{line['stage']}"] == 1
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
        # Each number has one name: none of Composer's beside ours, none of a callback's below `train/`.
        assert not [
            name for name in curves if name.startswith(("loss/", "train/lr-", "train/l2_norm", "train/through"))
        ]
    final = json.loads(next(result.folder.evaluations.glob("*step00000004.json")).read_text())
    assert stub.metrics[4]["validation/nelbo"] == final["perplexity"]
    assert "validation/nelbo" in stub.metrics[2]


def test_the_loss_goes_to_a_logger_under_one_name():
    told = []
    without = without_composers_loss(SimpleNamespace(log_metrics=lambda metrics, step: told.append((metrics, step))))
    without.log_metrics({"loss/train/total": 1.0}, 3)
    without.log_metrics({"train/loss": 1.0, "loss/train/total": 1.0}, step=3)
    assert told == [({"train/loss": 1.0}, 3)]


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
def test_a_run_that_stops_early_is_finished(tiny, tmp_path):
    said = ["train.steps=12", "train.evaluate_every=2", 'train.callbacks=[{use="early_stopper", patience=2}]']
    # So small a rate changes no weight: the perplexity stays.
    slow = 'optimizer={use="adamw", learning_rate=1e-30}'
    result = train(load(str(tiny.path), [*said, slow, "train.ema_decay=0"]), tmp_path / "run")
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (['train.callbacks=["early_stopper"]'], r"early_stopper needs held-out evaluations; set train\.evaluate_every"),
        (["train.keep_best=true"], "keep_best needs evaluations during training; set evaluate_every, or set keep"),
    ],
)
def test_what_goes_by_evaluations_needs_them(tiny, words, said):
    with pytest.raises(UserError, match=said):
        load(str(tiny.path), words)


@pytest.mark.parametrize(
    ("override", "package"),
    [
        ('train.loggers=["file", "tensorboard"]', "tensorboard"),
        ('train.loggers=[{use="mlflow"}]', "mlflow"),
        ("optimizer.use=lion", "lion_pytorch"),
    ],
)
def test_a_missing_package_is_named_before_work_begins(tiny, tmp_path, override, package, monkeypatch):
    found = find_spec
    monkeypatch.setattr("atat_zoo.system.machine.find_spec", lambda name: None if name == package else found(name))
    experiment = load(str(tiny.path), [override, f'data.root="{tmp_path}/shards"'])
    with pytest.raises(UserError, match=rf"needs the package {package}; install it with `pip install 'atat-zoo\["):
        train(experiment, tmp_path / "run")
    assert not any(tmp_path.iterdir())


# What is not installed everywhere


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
    stub = SimpleNamespace(
        run=SimpleNamespace(dir="", entity="me", project="p", get_url=lambda: ""),
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of versions that Composer chooses
def test_tensorboard_reads_the_curves_of_metrics_jsonl(tiny, tmp_path):
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module, reason="the extra atat-zoo[tensorboard] is not installed")
    run = train(load(str(tiny.path), [*SHORT, 'train.loggers=["tensorboard"]']), tmp_path / "run").folder
    (folder,) = {path.parent for path in run.logs.rglob("events.out.tfevents.*")}
    events = accumulator.EventAccumulator(str(folder), {"histograms": 0}).Reload()  # 0: all of them
    for name in ("loss", "mask_rate_target", "cross_entropy", "learning_rate"):
        found = {each.step: each.value for each in events.Scalars(f"train/{name}")}
        expected = {line["step"]: line[name] for line in run.read_metrics()}
        assert found == pytest.approx(expected, rel=1e-6)  # TensorBoard keeps 32 bits
    assert [each.step for each in events.Scalars("validation/nelbo")] == [0, 2, 4]
    for name in ("importance", "token_loss"):
        assert [each.step for each in events.Histograms(f"train/{name}")] == [2, 4]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_wandb_writes_the_curves_offline(tiny, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="the extra atat-zoo[wandb] is not installed")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = train(load(str(tiny.path), [*SHORT, 'train.loggers=["wandb"]']), tmp_path / "run").folder
    wandb.finish()
    (path,) = run.logs.rglob("*.wandb")
    store, found = DataStore(), {}
    store.open_for_scan(str(path))
    while data := store.scan_data():
        record = Record()
        record.ParseFromString(data)
        for item in record.history.item:
            name, *_ = item.nested_key or [item.key]
            found.setdefault(name, {})[record.history.step.num] = json.loads(item.value_json)
    store.close()
    assert found["train/loss"] == pytest.approx({line["step"]: line["loss"] for line in run.read_metrics()})
    assert found["validation/nelbo"].keys() == {0, 2, 4}
    assert found["train/importance"].keys() == found["train/token_loss"].keys() == {2, 4}


def test_the_optimizer_monitor_is_refused_with_sharded_weights():
    table = {"name": "x", "train": {"sharding": "full", "microbatch_size": 8, "callbacks": ["optimizer_monitor"]}}
    with pytest.raises(UserError, match=r"train\.callbacks: optimizer_monitor .*; use gradient_norms instead"):
        from_table(table | {"optimizer": "adamw"})
