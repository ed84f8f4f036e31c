"""Checks of stages of the training stream."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from atat_zoo.data.pipeline import Apply
from atat_zoo.data.stages import Stage
from atat_zoo.data.tokenizers import BytesTokenizer
from atat_zoo.errors import UserError
from atat_zoo.registry import Context
from atat_zoo.testing.batches import for_examples

_LENGTH = 24


def check_stage(stage: Any, examples: int = 50) -> None:
    """Check the contract of a stage: a sequence or a refusal, which only tokens, key and context decide."""
    assert Stage in stage.__class__.__mro__, "a stage inherits from atat_zoo.data.stages.Stage"
    tokenizer = BytesTokenizer().train(lambda: iter(()))
    V = tokenizer.vocabulary_size
    context = Context(vocabulary_size=V, length=_LENGTH, counts=np.arange(V, dtype=np.int64), tokenizer=tokenizer)
    contents: Any = SimpleNamespace(length=_LENGTH, dtype="uint16")
    passed = 0

    def holds(tokens: list[int], key: int, seed: int) -> None:
        nonlocal passed

        def made(seed: int) -> NDArray[Any]:
            np.random.seed(seed)
            torch.manual_seed(seed)
            found = stage.apply(np.array(tokens), key, context)
            return np.array([] if found is None else found)  # an empty one would be no sequence

        first = made(seed)
        stage.apply(np.array([7, 7]), key + 1, context)  # another sample between
        again = made(seed + 1)
        assert np.array_equal(first, again), "a sequence becomes the same, or is refused, with the same key"
        stored = np.full(_LENGTH, np.iinfo(np.uint16).max, np.uint16)
        stored[: len(tokens)] = tokens
        try:
            (sample,) = Apply(stage, 0, seed, contents, context)([{"stored": stored, "index": key, "attempt": 0}])
        except UserError as error:  # what it has made is no sequence
            raise AssertionError(str(error)) from None
        passed += "refused" not in sample

    tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=_LENGTH)
    for_examples(examples, tokens=tokens, key=st.integers(0, 2**64 - 1), seed=st.integers(0, 99))(holds)
    for key in range(100):
        holds(list(range(_LENGTH)), key, 0)  # all examples may be too short to pass
    assert passed, "some sequence passes"
