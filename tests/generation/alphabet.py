"""A tokenizer of letters, for the tests beside."""

import attrs


@attrs.frozen
class Alphabet:
    """Each letter is a token; `bos` and `eos`, if any, are the next ids, and have no text."""

    letters: str
    bos: int | None = None
    eos: int | None = None

    @property
    def vocabulary_size(self):
        return len(self.letters) + (self.bos is not None) + (self.eos is not None)

    def encode(self, text):
        return [self.letters.index(letter) for letter in text]

    def decode(self, ids):
        text = dict(enumerate(self.letters)) | {self.vocabulary_size: "[MASK]"}
        return "".join(text.get(i, "") for i in ids)
