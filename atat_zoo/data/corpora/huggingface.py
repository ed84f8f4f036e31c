"""Datasets from the Hugging Face hub or a local folder."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from atat_zoo.data import SPLITS, Split
from atat_zoo.data.corpora import Divided, held_out_share
from atat_zoo.data.corpora.detokenizers import Detokenizer
from atat_zoo.data.corpora.documents import Missing, Policy, Rows, columns_of, dialogue_of, text_of
from atat_zoo.data.dialogues import KEYS
from atat_zoo.registry import component, component_param, param
from atat_zoo.system.digests import Stamp, Stamps, fingerprint_of
from atat_zoo.system.errors import UserError, nearest

_FIRST = 1000  # rows of a split from which the length of all texts is estimated
_COMMIT = re.compile(r"[0-9a-f]{40}")


@component
class HuggingFaceCorpus(Divided):
    """A dataset from the Hugging Face hub, a local folder of data files, or a folder written by `save_to_disk`.

    The text of a run must not change, so a dataset on the hub needs a commit, and the content of a folder is hashed.
    With `streaming`, `datasets` reads the rows over the network every time. Otherwise, it downloads and converts the
    whole dataset into its cache, and a split can be a slice such as `train[:-100000]`. If `validation` or `test` is not
    set, a share of the training documents is held out, as in the `files` corpus. Dialogues (`data.format = "chat"`)
    have the same columns as in that corpus.
    """

    name = "huggingface"
    summary = "a Hugging Face dataset, from the hub or a local folder"
    refs = ("https://huggingface.co/docs/datasets", "arXiv:2109.02846")
    package = ("datasets", "atat-zoo[huggingface]")

    path: str = param(help="name of a dataset on the hub, such as Skylion007/openwebtext, or path to a local folder")
    config_name: str | None = param(None, help="dataset configuration, if there are several")
    revision: str | None = param(
        None, help="commit of the dataset, 40 hexadecimal digits; required for datasets on the hub"
    )
    train: str = param("train", help="training split, or a slice such as train[:-100000]")
    validation: str | None = param(None, help="validation split; default: documents held out from the training split")
    test: str | None = param(None, help="test split; default: documents held out from the training split")
    text_field: str = param("text", help="column with the text: its exact name, or a.b for a nested key")
    missing: Policy = param("error", help="records with null text: raise an error, or skip and count them")
    keep: tuple[str, ...] = param((), help='conditions, such as ["language=en"], that every kept record must meet')
    detokenizer: Detokenizer = component_param(
        "detokenizer", "none", help="detokenizer that restores ordinary text from a benchmark's tokens"
    )
    streaming: bool = param(False, help="stream the dataset instead of downloading it")
    cache: str | None = param(None, help="cache folder of the datasets library; default: the library's own")
    validation_share: float = held_out_share("validation", "validation")
    test_share: float = held_out_share("testing", "test")
    seed: int = param(0, help="seed for choosing the held-out documents", ge=0)
    holds_dialogues: ClassVar[bool] = True

    def __attrs_post_init__(self) -> None:
        self.check_shares()
        for condition in self.keep:
            if "=" not in condition:
                raise ValueError(f'keep: {condition!r} is not a condition; write one like "language=en"')
        if self.revision is not None and not _COMMIT.fullmatch(self.revision):
            raise ValueError(
                f"revision = {self.revision!r} is not a commit of 40 hexadecimal digits; set one, since branches change"
            )

    @override
    def fingerprint(self) -> dict[str, Any]:
        stamps = self.stamp()
        return {"revision": self.revision} if stamps is None else fingerprint_of(stamps)

    @override
    def stamp(self) -> Stamps | None:
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            return tuple(map(Stamp.of, sorted(file for file in folder.rglob("*") if file.is_file())))
        if self.revision is None:
            raise UserError(
                f"corpus.revision: {self.path} is not a local folder, and a dataset on the hub can change; set "
                f"corpus.revision to a commit from https://huggingface.co/datasets/{self.path}/commits/main"
            )
        return None  # its commit does not change

    @override
    def size(self) -> int | None:
        size = 0
        for split in SPLITS:
            if (named := getattr(self, split)) is None:
                continue
            loaded = self._load(named)
            about = (loaded.info.splits or {}).get(named)
            rows = getattr(about, "num_examples", None) if self.streaming else loaded.num_rows
            if not rows or self.keep:  # the share of kept rows is unknown
                return None
            first = islice(self._kept(split, self.text_field), _FIRST)
            texts = Missing("skip").texts(first, lambda row, at: text_of(row, self.text_field, at))
            size += rows * sum(len(text.encode()) for text in texts) // min(rows, _FIRST)
        return size

    @override
    def read(self, split: Split) -> Iterator[str]:
        missing, column = Missing(self.missing), self.text_field
        texts = missing.texts(self._kept(split, column), lambda row, at: text_of(row, column, at))
        yield from (text for text in map(self.detokenizer, texts) if text.strip())
        missing.say(f"corpus.{split}")

    @override
    def read_dialogues(self, split: Split) -> Iterator[str]:
        for position, row in self._kept(split, None):
            yield dialogue_of(row, position)

    def _kept(self, split: Split, column: str | None) -> Rows:
        """Yield the rows that fulfil all conditions, with only the columns that are needed."""
        conditions = [condition.partition("=")[::2] for condition in self.keep]
        named = getattr(self, split)
        loaded = self._load(named)
        if there := loaded.column_names:
            own = [key for key in KEYS if key in there] if column is None else columns_of(column, there)
            for key, name, found in (
                ("text_field", column, own),
                *(("keep", name, name in there) for name, _ in conditions),
            ):
                if name is not None and not found:
                    raise UserError(
                        f"corpus.{key}: {self.path} has no column {name!r}{nearest(name, there)} "
                        f"(available: {', '.join(there)})"
                    )
            loaded = loaded.select_columns(list(dict.fromkeys([*own, *(name for name, _ in conditions)])))
        for number, row in enumerate(self._rows(loaded, named), 1):
            if all(str(row[name]) == value for name, value in conditions):
                yield f"{self.path}, row {number}", row

    def rows(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a split, or of a slice such as `train[:100]`, with all columns."""
        return self._rows(self._load(split), split)

    def _load(self, split: str) -> Any:
        try:
            import datasets
        except ImportError:
            raise UserError(
                "corpus 'huggingface' needs the package datasets; run `pip install 'atat-zoo[huggingface]'`"
            ) from None
        datasets.disable_progress_bars()
        folder = Path(self.path).expanduser()
        try:
            if (folder / "state.json").is_file():
                return _part(datasets, datasets.load_from_disk(folder), split)
            return datasets.load_dataset(
                str(folder) if self.stamp() else self.path,
                self.config_name,
                split=split,
                revision=self.revision,
                streaming=self.streaming,
                cache_dir=self.cache,
            )
        except Exception as error:  # the library raises nearly anything
            raise self._unreadable(split, error) from None

    def _rows(self, loaded: Any, split: str) -> Iterator[dict[str, Any]]:
        try:
            yield from loaded
        except Exception as error:  # a damaged file or a lost connection
            raise self._unreadable(split, error) from None

    def _unreadable(self, split: str, error: Exception) -> UserError:
        reason = " ".join(str(error.__cause__ or error).split())
        streamed = self.streaming and "[" in split
        remedy = "; a slice of a split cannot be streamed, so set corpus.streaming = false" if streamed else ""
        signs = "; `datasets` reads [ as the start of a pattern, so rename the folder" if "[" in self.path else ""
        return UserError(f"corpus.path: split {split!r} of {self.path} cannot be read: {reason:.300}{remedy}{signs}")


def _part(datasets: Any, saved: Any, split: str) -> Any:
    """Return a split of a dataset written by `save_to_disk`; a dataset saved without splits is called "train"."""
    parts = datasets.ReadInstruction.from_spec(split).to_absolute({str(saved.split or "train"): len(saved)})
    return datasets.concatenate_datasets(
        [saved.select(range(part.from_ or 0, part.to or len(saved))) for part in parts]
    )
