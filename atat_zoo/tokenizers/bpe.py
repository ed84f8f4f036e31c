"""Byte-level byte-pair encoding, trained on the training split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from atat_zoo.tokenizers import TokenizerModel

BOS, EOS = "<bos>", "<eos>"


@component
class BPE:
    """Byte-pair encoding on bytes, as GPT-2 has it, trained on the training split.

    Every text can be written: the 256 bytes are in the vocabulary. V counts BOS
    and EOS, which are the last two ids. A small corpus may have fewer pairs than
    asked for; then V is smaller. The same text gives the same merges.
    """

    name = "bpe"
    summary = "byte-level byte-pair encoding, trained on the training split"
    refs = (
        "arXiv:1508.07909",
        "https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf",
    )

    vocabulary_size: int = param(2048, help="V, with the 256 bytes, BOS and EOS", ge=258)

    def train(self, documents: Callable[[], Iterator[str]]) -> TokenizerModel:
        """Return the tokenizer, trained on the documents."""
        from atat_zoo.tokenizers.library import LibraryModel, new_byte_level, quiet

        quiet()
        from tokenizers import pre_tokenizers, trainers

        tokenizer = new_byte_level()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary_size - 2,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents(), trainer)
        tokenizer.add_special_tokens([BOS, EOS])
        return LibraryModel(tokenizer, bos=BOS, eos=EOS)

    def load(self, folder: Path) -> TokenizerModel:
        """Return the tokenizer that `save` wrote."""
        from atat_zoo.tokenizers.library import LibraryModel, from_file
        from atat_zoo.tokenizers.tables import FILE

        return LibraryModel(from_file(folder / FILE), bos=BOS, eos=EOS)
