"""Judge models that read texts in chunks. Sizes: n texts, B chunks per batch, T tokens per chunk, width D."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from atat_zoo.data import is_framed
from atat_zoo.generation.model import Model
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.system.devices import exact_device, move_to, torch_device
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import quiet_transformers


class ChunkJudge(ABC):
    """A `JudgeModel` that splits texts into chunks and sums the chunks' NLLs."""

    title: str
    device: torch.device | str
    length: int  # maximum number of text tokens in a chunk
    start: int | None  # the token before the text of every chunk, if any
    skipped: int  # tokens at the beginning of a chunk, including `start`, whose losses are not counted
    # The feature of a text: the mean of its hidden states, or the hidden state of the last token in its first chunk.
    pooling: Literal["mean", "last"] = "mean"
    batch_size: int  # chunks per batch

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of non-empty texts, or raise `UserError` if the tokenizer cannot encode one of them."""

    @abstractmethod
    def losses(self, tokens: Tensor, counted: Tensor) -> Tensor:
        """Return the NLL of every token, float [B, T]; values where `counted` is False are ignored."""

    @abstractmethod
    def hidden(self, tokens: Tensor, counted: Tensor) -> Tensor:
        """Return a hidden state for every token, float [B, T, D]."""

    @torch.no_grad()
    def nats(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the NLL and the number of tokens of each text; see `JudgeModel`."""
        nats = torch.zeros(len(texts), dtype=torch.float64)
        count = torch.zeros(len(texts), dtype=torch.int64)
        for rows, tokens, counted in self._batches(self._encoded(texts), self.skipped):
            losses, counted = move_to((self.losses(tokens, counted), counted), exact_device(counted.device))
            losses = losses.double()
            nats.index_add_(0, rows, torch.where(counted, losses, 0.0).sum(1).cpu())
            count.index_add_(0, rows, counted.sum(1).cpu())
        return nats, count

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Tensor:
        """Return the feature vector of each text, float32 [n, D]; see `JudgeModel`."""
        encoded = self._encoded(texts)
        empty = next((i for i, ids in enumerate(encoded) if not ids), None)
        if empty is not None:
            problem = f"text {empty + 1} of {len(texts)} is empty, and an empty text does not have features"
            raise UserError(f"{problem}; generate longer texts, or leave out metrics that need features")
        if self.pooling == "last":
            encoded = [ids[: self.length] for ids in encoded]
        total: Tensor | None = None
        count = torch.zeros(len(texts), dtype=torch.float64)
        for rows, tokens, counted in self._batches(encoded, 0 if self.start is None else 1):
            of_text = counted
            if self.pooling == "last":
                position = torch.arange(counted.shape[1], device=counted.device).expand_as(counted)
                of_text = position == torch.where(counted, position, -1).amax(1, keepdim=True)
            hidden, of_text = move_to((self.hidden(tokens, counted), of_text), exact_device(counted.device))
            sums = (hidden.double() * of_text[..., None]).sum(1).cpu()
            if total is None:
                total = torch.zeros(len(texts), sums.shape[1], dtype=torch.float64)
            total.index_add_(0, rows, sums)
            count.index_add_(0, rows, of_text.sum(1).double().cpu())
        assert total is not None
        return (total / count[:, None]).float()

    def unreadable(self, why: object) -> UserError:
        """Return the error for a text that the tokenizer cannot encode."""
        return UserError(
            f"the judge {self.title} cannot read the text: {why}; choose a judge whose tokenizer can encode it"
        )

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            raise UserError("no text to judge; pass at least one")
        there = [i for i, text in enumerate(texts) if text]
        encoded: list[list[int]] = [[] for _ in texts]
        for i, ids in zip(there, self.encode([texts[i] for i in there]) if there else [], strict=True):
            if not ids:
                raise UserError(f"the tokenizer of {self.title} returns nothing for text {i + 1}; choose another judge")
            encoded[i] = ids
        return encoded

    def _batches(self, encoded: Sequence[Sequence[int]], skipped: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield batches of each chunk's text index [B], its tokens [B, T] padded with 0, and a token mask [B, T]."""
        start = [] if self.start is None else [self.start]
        chunks = [
            (row, [*start, *ids[first : first + self.length]])
            for row, ids in enumerate(encoded)
            for first in range(0, len(ids), self.length)
        ]
        for first in range(0, len(chunks), self.batch_size):
            batch = chunks[first : first + self.batch_size]
            longest = max(len(ids) for _, ids in batch)
            tokens = torch.tensor([[*ids, *([0] * (longest - len(ids)))] for _, ids in batch])
            counted = torch.arange(longest) < torch.tensor([[len(ids)] for _, ids in batch])
            counted[:, :skipped] = False
            yield torch.tensor([row for row, _ in batch]), tokens.to(self.device), counted.to(self.device)


class RunScorer(ChunkJudge):
    """A judge model loaded from a run whose objective has an exact likelihood; `name` is the run's name."""

    def __init__(self, model: Model, name: str) -> None:
        self.tokenizer = model.tokenizer
        self.module: Any = model.module
        self.device = model.context.device
        self.title = f"{name} ({model.experiment.parts['objective'].name}, step {model.step})"
        data = model.experiment.data
        framed = is_framed(data.special_tokens)
        self.start, self.skipped = model.tokenizer.bos if framed else None, int(framed)
        # If every full sequence ended with EOS, the model has never seen text at the last position.
        ended = framed or (data.special_tokens == "document" and data.packing == "document")
        self.length = model.context.length - self.skipped - ended
        self.batch_size = model.experiment.evaluation.batch_size

    @override
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            return self.tokenizer.encode_batch(texts)
        except UserError as error:
            raise self.unreadable(error) from None

    @override
    def losses(self, tokens: Tensor, counted: Tensor) -> Tensor:
        keys = torch.zeros_like(tokens[:, 0])  # an exact likelihood draws no masks
        return self.module.bound(tokens, counted, keys, 1, ExactKBound())["nelbo"].contribution

    @override
    def hidden(self, tokens: Tensor, counted: Tensor) -> Tensor:
        # Those that predict the tokens, as for `losses`: the network has learned no other attention.
        return move_to(self.module.head_inputs_of(tokens, None, counted, tokens).hidden, tokens.device)


# Names of a model's maximum number of tokens in its settings.
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_UNLIMITED = 1024  # for a model without this setting


class HuggingFaceScorer(ChunkJudge):
    """A judge model that consists of a `transformers` model and its tokenizer, from the hub or a folder."""

    def __init__(
        self,
        device: str,
        *,
        model: str,
        length: int | None,
        revision: str | None,
        begin: Literal["bos", "none"],
        pooling: Literal["mean", "last"],
        batch_size: int,
    ) -> None:
        self.title = model if revision is None else f"{model} at {revision}"
        self.pooling, self.batch_size, self.skipped = pooling, batch_size, 1
        self.device = torch_device(device)
        self.tokenizer, network = _load(model, revision)
        self.model = network.to(self.device).float().eval()
        longest = next((v for k in _LENGTHS if isinstance(v := getattr(network.config, k, None), int)), None)
        if length is not None and longest is not None and length > longest:
            raise UserError(f"judge.length: {model} reads at most {longest} tokens; lower judge.length")
        self.start = None
        if begin == "bos":
            self.start = self.tokenizer.bos_token_id
            if self.start is None:
                problem = f"judge.begin: the tokenizer of {model} has no BOS token"
                raise UserError(f'{problem}; set begin = "none", which does not score the first token of a chunk')
        self.length = (length or longest or _UNLIMITED) - (self.start is not None)

    @override
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        # The name of a special token in a text is ordinary text.
        encoded = self.tokenizer(
            list(texts), add_special_tokens=False, split_special_tokens=True, truncation=False, verbose=False
        )
        ids: list[list[int]] = encoded["input_ids"]
        unknown = self.tokenizer.unk_token_id
        # GPT-2 also uses its only special token as the unknown token, but never encodes text with it.
        if unknown is not None and any(unknown in row for row in ids):
            raise self.unreadable("its tokenizer has no token for some characters")
        return ids

    @override
    def losses(self, tokens: Tensor, counted: Tensor) -> Tensor:
        logits = self._ask(tokens, counted).logits[:, :-1]
        # One row at a time: two copies of float32 [B, T, V] would take most of the memory.
        pairs = zip(logits, tokens[:, 1:], strict=True)
        rows = [F.cross_entropy(row.float(), ids, reduction="none") for row, ids in pairs]
        return F.pad(torch.stack(rows), (1, 0))

    @override
    def hidden(self, tokens: Tensor, counted: Tensor) -> Tensor:
        return self._ask(tokens, counted, output_hidden_states=True).hidden_states[-1]

    def _ask(self, tokens: Tensor, counted: Tensor, **options: Any) -> Any:
        attention = counted.clone()
        attention[:, 0] = True  # the first token of a chunk is read but not counted
        return self.model(input_ids=tokens, attention_mask=attention.long(), use_cache=False, **options)


def _load(name: str, revision: str | None) -> tuple[Any, Any]:
    try:
        import transformers
    except ImportError:
        raise UserError(
            "the judge 'huggingface' needs the package transformers; install it with `pip install 'atat-zoo[judge]'`"
        ) from None
    try:
        with quiet_transformers():
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name, revision=revision)
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                name, revision=revision, use_safetensors=True, output_loading_info=True
            )
    # OSError: the model does not exist, or the network is down; the others: the files are not those of a causal model.
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"judge.model: {name!r} cannot be loaded ({first}); choose a causal model with safetensors weights on the "
            "hub, or a folder with such a model and its tokenizer, and check the network connection if the model must "
            "be downloaded"
        ) from None
    model, report = loaded
    # The library would initialise the missing weights at random and continue.
    if lacking := sorted(report["missing_keys"]):
        problem = f"{name!r} lacks weights ({lacking[0]}; {len(lacking)} in total), so it is not a causal model"
        raise UserError(f"judge.model: {problem}; choose a different model")
    return tokenizer, model
