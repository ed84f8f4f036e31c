"""GLUE from local files: a classification head on a model or on a run, with the published metrics (arXiv:1804.07461).

The folder of a task is as GLUE ships it (train.tsv, dev.tsv) or as the hub has it (train-….parquet,
validation-….parquet).
"""

from __future__ import annotations

import csv
import inspect
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo.errors import UserError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

_ENTAILMENT = ("entailment", "not_entailment")


class Task(NamedTuple):
    """A task: its columns of text, its classes (none for a number), its metrics and its held-out files."""

    texts: tuple[str, ...]
    metrics: tuple[str, ...]
    classes: tuple[str, ...] = ("0", "1")
    held_out: tuple[str, ...] = ("",)  # endings of `dev` and `validation`


_PAIR = ("sentence1", "sentence2")
TASKS = {
    "cola": Task(("sentence",), ("matthews",)),
    "sst2": Task(("sentence",), ("accuracy",)),
    "mrpc": Task(_PAIR, ("accuracy", "f1")),
    "stsb": Task(_PAIR, ("pearson", "spearman"), ()),
    "qqp": Task(("question1", "question2"), ("accuracy", "f1")),
    "mnli": Task(_PAIR, ("accuracy",), ("entailment", "neutral", "contradiction"), ("_matched", "_mismatched")),
    "qnli": Task(("question", "sentence"), ("accuracy",), _ENTAILMENT),
    "rte": Task(_PAIR, ("accuracy",), _ENTAILMENT),
    "wnli": Task(_PAIR, ("accuracy",)),
}
# What GLUE's tables and the hub's call differently.
_RENAMED = {
    "#1 String": "sentence1",
    "#2 String": "sentence2",
    "premise": "sentence1",
    "hypothesis": "sentence2",
    "Quality": "label",
    "is_duplicate": "label",
    "gold_label": "label",
    "score": "label",
}
_COLA = ("source", "label", "mark", "sentence")  # the one table without a first line


class Examples(NamedTuple):
    """Texts and their labels: n tuples of one or two, and float64 [n], the number of the class or the number itself."""

    texts: list[tuple[str, ...]]
    labels: NDArray[np.float64]


def read(task: str, folder: Path, split: str) -> Examples:
    """Return the examples of `train`, or of `dev` with its ending; lines that lack a column are left out.

    Raises:
        UserError: when the file is not there, or is not of this task.
    """
    import pandas

    spec = TASKS[task]
    names = (f"{split}.tsv", f"{split.replace('dev', 'validation')}*.parquet", f"{split}*.parquet")
    files = next((found for name in names if (found := sorted(folder.glob(name)))), [])
    if not files:
        raise UserError(f"{folder} has none of {', '.join(names)}; name the folder of {task}'s files")
    tables = []
    for path in files:
        try:
            if path.suffix == ".parquet":
                table = pandas.read_parquet(path)
            else:
                head = {"header": None, "names": _COLA} if task == "cola" else {}
                options: Any = {"sep": "\t", "quoting": csv.QUOTE_NONE, "keep_default_na": False, "dtype": str, **head}
                table = pandas.read_csv(path, on_bad_lines="skip", **options)
            tables.append(table.rename(columns=_RENAMED)[[*spec.texts, "label"]])
        except (OSError, ValueError, KeyError) as error:
            problem = str(error).splitlines()[0]
            raise UserError(f"{path} is no table of {task}: {problem}; copy it again") from None
    rows = pandas.concat(tables).dropna()
    number = {name: i for i, name in enumerate(spec.classes)} | {str(i): i for i in range(len(spec.classes))}
    try:
        labels = [float(label) if not spec.classes else number[str(label)] for label in rows["label"]]
    except (KeyError, ValueError) as error:
        known = ", ".join(spec.classes) or "numbers"
        raise UserError(f"{files[0]}: the label {error} is none of {task}'s ({known}); copy it again") from None
    texts = list(zip(*(map(str, rows[name]) for name in spec.texts), strict=True))
    if not texts:
        raise UserError(f"{files[0]} has no examples; copy it again")
    import numpy as np

    return Examples(texts, np.array(labels, np.float64))


def scores(task: str, found: NDArray[np.float64], wanted: NDArray[np.float64]) -> dict[str, float]:
    """Return the metrics of a task by name: a class or a number for each example, float64 [n] both; 0 if undefined."""
    import numpy as np
    from scipy.stats import rankdata
    from sklearn import metrics

    def correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
        return float(np.corrcoef(one, other)[0, 1]) if one.std() > 0 and other.std() > 0 else 0.0

    measures: dict[str, Callable[[], float]] = {
        "accuracy": lambda: metrics.accuracy_score(wanted, found),
        "f1": lambda: metrics.f1_score(wanted, found, zero_division=0),
        "matthews": lambda: metrics.matthews_corrcoef(wanted, found),
        "pearson": lambda: correlation(found, wanted),
        "spearman": lambda: correlation(rankdata(found), rankdata(wanted)),
    }
    return {name: float(measures[name]()) for name in TASKS[task].metrics}


class Recipe(NamedTuple):
    """How a head is trained, with the model: BERT's recipe (arXiv:1810.04805, section 4.1)."""

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 2e-5
    length: int = 128
    seed: int = 17
    device: str = "auto"


def glue(task: str, data: Path, models: Sequence[str], recipe: Recipe) -> dict[str, dict[str, float]]:
    """Return the metrics of each model on the held-out files, by its name; `majority` is the most frequent class.

    Args:
        task: of `TASKS`.
        data: the folder of its files.
        models: names on the hub, folders, or run folders with the backbone `transformers`.
        recipe: how each is trained.

    Raises:
        UserError: when a file or a model is not there, or does not fit.
    """
    if task not in TASKS:
        raise UserError(f"there is no task {task!r}{nearest(task, list(TASKS))} (there are: {', '.join(TASKS)})")
    for package, module in (("pandas", "pandas"), ("scikit-learn", "sklearn")):
        if not find_spec(module):
            remedy = "install it with `pip install 'atat-zoo-transformers[glue]'`"
            raise UserError(f"glue needs the package {package}; {remedy}")
    import numpy as np

    train = read(task, data, "train")
    held_out = {ending: read(task, data, f"dev{ending}") for ending in TASKS[task].held_out}

    def measured(predict: Callable[[Examples], NDArray[np.float64]]) -> dict[str, float]:
        each = {ending: scores(task, predict(examples), examples.labels) for ending, examples in held_out.items()}
        return {name + ending: value for ending, found in each.items() for name, value in found.items()}

    kinds, counts = np.unique(train.labels, return_counts=True)
    usual = float(kinds[counts.argmax()])
    found = {"majority": measured(lambda examples: np.full(len(examples.labels), usual))}
    for model in models:
        found[model] = measured(_fitted(task, model, train, recipe))
    return found


def _fitted(task: str, model: str, train: Examples, recipe: Recipe) -> Callable[[Examples], NDArray[np.float64]]:
    """Train a model with a head; return what predicts the class, or the number, of examples."""
    import torch

    from atat_zoo.model.model import torch_device
    from atat_zoo_transformers.module import first_position
    from atat_zoo_transformers.source import longest_of

    device, classes = torch_device(recipe.device), len(TASKS[task].classes)
    tokenizer, network = _with_head(model, max(classes, 1), recipe)
    network.to(device)
    reads = inspect.signature(network.forward).parameters
    longest = longest_of(network.config.to_dict())
    length = recipe.length if longest is None else min(recipe.length, longest - first_position(network))

    def inputs(texts: list[tuple[str, ...]]) -> dict[str, Any]:
        columns = [list(column) for column in zip(*texts, strict=True)]
        made = tokenizer(*columns, truncation=True, max_length=length, padding=True, return_tensors="pt")
        return {key: value.to(device) for key, value in made.items() if key in reads}

    size, n = recipe.batch_size, len(train.texts)
    steps = recipe.epochs * -(-n // size)
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.learning_rate, weight_decay=0.01)

    def rate(step: int) -> float:
        """Return the share of the learning rate: up in a tenth of the steps, and down to zero."""
        return min((step + 1) / max(1, steps // 10), 1 - step / steps)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    # The library's dropout draws from the global generator.
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        network.train()
        for _ in range(recipe.epochs):
            for rows in torch.randperm(n).split(size):
                labels = torch.from_numpy(train.labels[rows.numpy()]).to(device)
                logits = network(**inputs([train.texts[i] for i in rows.tolist()])).logits.float()
                if classes:
                    loss = torch.nn.functional.cross_entropy(logits, labels.long())
                else:
                    loss = torch.nn.functional.mse_loss(logits[:, 0], labels.float())
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    network.eval()

    def predict(examples: Examples) -> NDArray[np.float64]:
        batches = [examples.texts[i : i + size] for i in range(0, len(examples.texts), size)]
        with torch.no_grad():
            logits = torch.cat([network(**inputs(batch)).logits.float() for batch in batches])
        found = logits.argmax(-1) if classes else logits[:, 0]
        return found.double().cpu().numpy()

    return predict


def _with_head(model: str, outputs: int, recipe: Recipe) -> tuple[Any, Any]:
    """Return the tokenizer of a model or of a run, and the network with a new head of so many outputs."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from atat_zoo.run import RunFolder
    from atat_zoo_transformers.convert import export_run
    from atat_zoo_transformers.source import reading

    with tempfile.TemporaryDirectory() as folder:
        source = model
        if RunFolder(Path(model)).exists:
            export_run(Path(model), Path(source := folder))
        with reading(model), torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            network = AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=outputs, use_safetensors=True, dtype=torch.float32, trust_remote_code=False
            )
    if tokenizer.pad_token is None:
        raise UserError(f"the tokenizer of {model} has no token for padding; name a masked language model")
    # A causal model reads the last token that is none of it, and may not know its tokenizer's.
    network.config.pad_token_id = tokenizer.pad_token_id
    return tokenizer, network
