"""Batches that cover edge cases, drawn by hypothesis, and the assertions that checks share."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor

from atat_zoo.diffusion.contracts import NoisedBatch
from atat_zoo.registry import Context

LONGEST = 1024
VOCABULARY = 11
ROWS = 8
LENGTHS = (1, 2, 3, 17, 64, LONGEST)


def context(**changes: Any) -> Context:
    """Return a small context: 11 tokens with counts, length 1024, width 8 and 1,000 steps, with `changes`."""
    # As in a real corpus, one token never occurs and another is very frequent.
    counts = np.arange(VOCABULARY, dtype=np.int64) ** 4
    small = {"vocabulary_size": VOCABULARY, "length": LONGEST, "width": 8, "counts": counts, "steps": 1000}
    return Context(**{**small, **changes})


# The fraction of its examples that every check tries; lower it for speed.
share = 1.0


def for_examples(count: int, **drawn: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
    """Return a decorator that immediately calls a function on up to `count` · `share` examples, the same every time."""
    repeatable = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    tried = settings(repeatable, max_examples=max(1, round(count * share)), report_multiple_bugs=False)
    return lambda check: tried(given(**drawn)(check))()


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """The inputs of a masking strategy and a generator for further random numbers."""

    importance: Tensor  # [B, L] in [0, 1]: random, constant, 0 or 1, or on a grid with ties
    rate: Tensor  # [B] in [0, 1], including 0, 1 and values close to them
    maskable: Tensor  # bool [B, L]: random, all, one or none
    generator: torch.Generator

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print only the size, for hypothesis."""
        count, length = self.importance.shape
        printer.text(f"{count} rows of length {length} in {str(self.importance.dtype).removeprefix('torch.')}")

    def uniform(self, *shape: int) -> Tensor:
        """Return uniform random numbers in [0, 1) as float32 with the given shape."""
        return torch.rand(*shape, generator=self.generator)


DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@st.composite
def rows(draw: DrawFn, *, grid: bool = False) -> Rows:
    """Return a strategy that draws `Rows`; with `grid`, importances are multiples of 1/8, with many ties."""
    length = draw(st.sampled_from(LENGTHS))
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    u = torch.rand(ROWS, length, generator=generator)
    in_eighths = (u * 9).floor() / 8
    importance = in_eighths.clone() if grid else u.clone()
    importance[1] = importance[1, 0]
    importance[2] = (u[2] < 0.5).float()
    importance[3] = in_eighths[3]
    # One token that differs from all others and saturates first.
    importance[4] = 0.0
    importance[4, -1] = 1.0
    maskable = torch.rand(ROWS, length, generator=generator) < draw(st.sampled_from([0.1, 0.7, 1.0]))
    maskable[5] = False
    maskable[6] = torch.arange(length) == length // 2
    maskable[7] = True
    rate = torch.rand(ROWS, generator=generator)
    kinds = st.sampled_from(["random", "random", "zero", "one", "tiny", "nearly one", "count"])
    for row, random in enumerate(rate.tolist()):
        ends = {"zero": 0.0, "one": 1.0, "tiny": 1e-7, "nearly one": 1 - 2.0**-24}
        rate[row] = (ends | {"random": random, "count": math.floor(random * length) / length})[draw(kinds)]
    return Rows(importance=importance.to(dtype), rate=rate, maskable=maskable, generator=generator)


def temperatures() -> st.SearchStrategy[float]:
    """Return a strategy that draws temperatures from 1e-3 to 1e3 on a logarithmic scale, including both ends."""
    return st.one_of(st.sampled_from([1e-3, 1e3, 1.0]), st.floats(-3, 3).map(lambda x: 10.0**x))


def masked_step(drawn: Rows) -> tuple[NoisedBatch, Tensor]:
    """Return a batch whose maskable tokens are masked with probability `rate`, and losses [B, L], 0 if not masked."""
    shape = drawn.maskable.shape
    p = drawn.rate.unsqueeze(-1) * drawn.maskable
    masked = drawn.uniform(*shape) < p
    x = (drawn.uniform(*shape) * VOCABULARY).long()
    z, rate = torch.where(masked, VOCABULARY, x), drawn.rate
    step = NoisedBatch(x=x, z=z, masked=masked, maskable=drawn.maskable, t=rate, rate=rate, p=p)
    return step, -(drawn.uniform(*shape).clamp(min=1e-6).log()) * masked


def taught(built: Any, steps: int, drawn: Rows) -> Any:
    """Update a built component that has a state for the given number of steps, and return it."""
    for number in range(steps):
        built.update(built.statistics(*masked_step(drawn)), number / 1000)
    return built


def built(spec: Any, **changes: Any) -> Any:
    """Return the component built with a small context."""
    return spec.build(context(**changes))


def holds(condition: Tensor, promise: str, shown: object = None) -> None:
    """Raise an AssertionError with the `promise` and the value `shown` unless the condition is true everywhere."""
    assert bool(condition.all()), promise if shown is None else f"{promise}: {shown}"


def raises(errors: tuple[type[Exception], ...], call: Callable[[], object], promise: str) -> None:
    """Raise an AssertionError unless the call raises one of the errors."""
    try:
        call()
    except errors:
        return
    raise AssertionError(promise)


def is_tensor(value: Tensor, what: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
    """Raise an AssertionError if a tensor has a different dtype or shape; `what` names it in the message."""
    found, wanted = f"{value.dtype} {list(value.shape)}", f"{dtype} {list(shape)}"
    assert found == wanted, f"{what}: expected {wanted}, not {found}".replace("torch.", "")


def called(part: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Return a component's result; raise an AssertionError if it changes an argument or torch's random state."""
    before = {name: value.clone() for name, value in given.items() if isinstance(value, torch.Tensor)}
    state = torch.get_rng_state()
    result = part(*given.values())
    for name, value in before.items():
        holds(given[name] == value, f"the argument {name} must not be changed")
    assert torch.equal(torch.get_rng_state(), state), "random numbers must not come from torch's global state"
    return result


def close(found: Tensor, wanted: Tensor, tolerance: float, promise: str) -> None:
    """Raise an AssertionError if two tensors differ by more than the tolerance anywhere."""
    difference = (found.double() - wanted.double()).abs()
    if not bool((difference <= tolerance).all()):  # NaN fails too
        raise AssertionError(f"{promise}: the difference of {difference.max().item():.3g} exceeds {tolerance:g}")
