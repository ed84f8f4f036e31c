"""Text from a denoiser: prompts, masks, seeds and decoding around a sampler.

A `Writer` is a denoiser with its tokenizer, from any source; `Model.writer` returns one for a trained model.
`infill` uses it to fill the gaps of given texts. Legend: B texts in a batch, L tokens in a text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import attrs

from atat_zoo.data import has_eos
from atat_zoo.data.tokenizers import TokenizerModel
from atat_zoo.errors import UserError, clip
from atat_zoo.generation.infilling import Filled, Infilling, infill
from atat_zoo.generation.layout import (
    SpaceAwareTokenizer,
    asked,
    before_end,
    ends,
    framing,
    prompted,
    refuse_length,
    require_leading_space,
)
from atat_zoo.generation.samplers import Observer, Sample, Sampler, shifted
from atat_zoo.modeling.diffusion.contracts import Denoiser

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Filled", "Generation", "Infilling", "Writer", "infill"]

_SHOWN = 8  # texts of a generation that is printed


@attrs.frozen(kw_only=True, eq=False)
class Generation:
    """Texts, one for each row of `sample.tokens`, and what they cost: evaluations, and seconds in the sampler."""

    texts: list[str]
    sample: Sample
    seconds: float

    def __repr__(self) -> str:
        shown = "".join(f"\n  {clip(repr(text))}" for text in self.texts[:_SHOWN])
        more = f"\n  and {len(self.texts) - _SHOWN:,} more" if len(self.texts) > _SHOWN else ""
        return f"<Generation in {self.seconds:.2f} s: {self.sample!r}{shown}{more}>"


@attrs.frozen(kw_only=True, eq=False)
class Writer:
    """A denoiser that writes.

    `special` is as in `[data]`: with "sequence" or "both", BOS and EOS are given at the ends of a text, or, if it is
    longer than `length`, at those of the window that the denoiser sees of it, and then it contains neither.
    """

    denoiser: Denoiser
    tokenizer: TokenizerModel  # whose `vocabulary_size` is the mask
    length: int  # tokens in a text of the training data
    special: Literal["none", "document", "sequence", "both"] = "none"
    form: Literal["text", "chat"] = "text"  # as in `[data]`; dialogues have EOS by their template
    cost: int = 1  # passes through a network per evaluation
    device: str | torch.device = "cpu"  # of the texts
    network: str | torch.device | None = None  # of the network, if that is another
    bf16: bool = False  # whether the network computes in bf16, by autocast; log-probabilities are always float32

    def __attrs_post_init__(self) -> None:
        self.denoiser.frame = ends(self.tokenizer, self.special)

    def write(
        self,
        sampler: Sampler,
        *,
        number: int = 1,
        length: int | None = None,
        seed: int = 0,
        prompt: str = "",
        suffix: str = "",
        chat: str | Sequence[Mapping[str, str]] = (),
        trusted: bool = False,
        windows: bool = False,
        batch_size: int = 64,
        rows: Tensor | None = None,
        observe: Observer | None = None,
    ) -> Generation:
        """Write `number` texts that begin with a prompt and end with a suffix, `batch_size` at once.

        What is written ends before its first EOS, where the training data has EOS; the suffix follows. With `windows`
        the texts are windows of running text: all tokens but BOS and EOS, the beginnings of further documents included.
        The sample always has all tokens.

        With a `chat`, a question or the messages so far, it writes an answer, which the prompt begins, and the texts
        are answers. Unless the messages are `trusted`, a template by which the text of one can pass for a message of
        somebody else is refused.

        A row has `length` tokens, prompt, BOS and EOS included; the training length if None. The same seed writes the
        same texts. Text n does not depend on their number, except for the rounding of a network that computes several
        texts at once; only those of the numbers `rows`, int64 [n], are written, if these are given. `observe` is called
        with a record of each step; see `Sampler.sample`. Rows are numbered over all texts. It raises `UserError` when a
        number is too small, the length exceeds the training length and the sampler does not go block by block, or
        prompt and suffix do not fit.
        """
        import torch

        for name, value, least in (("number", number, 0), ("length", length, 1), ("batch_size", batch_size, 1)):
            if value is not None and value < least:
                raise UserError(f"{name} = {value}: at least {least} is needed; ask for more")
        length = self.length if length is None else length
        refuse_length(sampler, number, length, self.length)
        words = SpaceAwareTokenizer(self.tokenizer)
        before = asked(self.tokenizer, chat, trusted=trusted) if chat else []
        row, opening = prompted(words, self.special, length, prompt, suffix, seen=self.length, before=before)
        rows = torch.arange(number, device=self.device) if rows is None else rows.to(self.device)
        tokens = torch.tensor(row, dtype=torch.int64, device=self.device).expand(len(rows), length)
        started = time.perf_counter()
        writer = require_leading_space(self, opening, words)
        sample = writer.fill(sampler, tokens, rows=rows, seed=seed, batch_size=batch_size, observe=observe)
        begins = len(framing(self.tokenizer, self.special, length, seen=self.length, before=before)[0]) if chat else 0
        masked = [i for i, token in enumerate(row) if token == self.denoiser.mask_id]
        gap = slice(masked[0], masked[-1] + 1) if masked else slice(begins, begins)
        end = self.end(chat=bool(chat), windows=windows)
        texts = [
            self.tokenizer.decode([*ids[begins : gap.start], *before_end(ids[gap], end), *ids[gap.stop :]])
            for ids in sample.tokens.tolist()
        ]
        return Generation(texts=texts, sample=sample, seconds=time.perf_counter() - started)

    def end(self, *, chat: bool = False, windows: bool = False) -> int | None:
        """Return the token that ends what is written: EOS, or None where the training data has none; see `write`."""
        has = chat or has_eos(self.special, self.form)
        return self.tokenizer.eos if has and not windows else None

    def autocast(self) -> torch.autocast:
        """Return the context in which the network computes in its precision."""
        import torch

        kind = torch.device(self.device if self.network is None else self.network).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.bf16)

    def fill(
        self,
        sampler: Sampler,
        tokens: Tensor,
        *,
        rows: Tensor | None = None,
        seed: int | Sequence[int] = 0,
        batch_size: int = 64,
        observe: Observer | None = None,
    ) -> Sample:
        """Fill masks in int64 [B, L]; see `write`.

        Row n of `rows`, int64 [B], or of 0, 1, …, draws by (seed, n), the seed being one for all or one for each.
        """
        import torch

        from atat_zoo.modeling.diffusion.randomness import row_keys
        from atat_zoo.system.devices import moved

        refuse_length(sampler, len(tokens), tokens.shape[1], self.length)
        tokens, rows = moved((tokens, torch.arange(len(tokens)) if rows is None else rows), self.device)
        each = zip(seed, rows.split(1), strict=True) if isinstance(seed, Sequence) else [(seed, rows)]
        seeds = torch.cat([row_keys(one, "sample", some) for one, some in each])
        # One autocast around all batches, so that the weights are cast once.
        with self.autocast():
            parts = [
                sampler.sample(self.denoiser, some, keys, observe=shifted(observe, rows=batch_size * i))
                for i, (some, keys) in enumerate(zip(tokens.split(batch_size), seeds.split(batch_size), strict=True))
                if len(some)
            ]
        if not parts:
            return Sample(tokens=tokens, nfe=tokens.new_zeros(0), max_nfe=0)
        nfe, most = torch.cat([part.nfe for part in parts]), max(part.max_nfe for part in parts)
        return Sample(tokens=torch.cat([part.tokens for part in parts]), nfe=nfe * self.cost, max_nfe=most * self.cost)
