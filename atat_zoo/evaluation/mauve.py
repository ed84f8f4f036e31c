"""MAUVE of two sets of texts, computed by its authors' package."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

MAUVE_SEED = 25  # of the clustering: the package's default, so that its users get the same result
FEWEST_OF_MAUVE = 20  # the package makes one cluster per ten texts, and at least two clusters
RELIABLE_OF_MAUVE = 1000  # below this number, MAUVE depends more on the clustering than on the texts


def check_mauve(number: int) -> None:
    """Raise `UserError` if there are too few texts or the package is not installed."""
    if number < FEWEST_OF_MAUVE:
        enough = f"at least {FEWEST_OF_MAUVE} texts of each kind (generated, held-out), preferably {RELIABLE_OF_MAUVE}"
        raise UserError(f"MAUVE needs {enough}, not {number}; use more texts")
    if find_spec("mauve") is None:
        raise UserError("MAUVE needs the package mauve-text; install it with `pip install 'atat-zoo[mauve]'`")


def mauve_of(texts: Tensor, reference: Tensor) -> float:
    """Return MAUVE, in (0, 1], of two sets of features, float32 [n, D]; raise `UserError` if it cannot be computed."""
    check_mauve(min(len(texts), len(reference)))
    if not bool(texts.isfinite().all() and reference.isfinite().all()):
        raise UserError("the judge's features are not finite, so its model may have diverged; choose another judge")
    from mauve import compute_mauve

    with _quiet():
        result = compute_mauve(p_features=reference.numpy(), q_features=texts.numpy(), verbose=False, seed=MAUVE_SEED)
    return float(result.mauve)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of the clustering, whose native code writes directly to the terminal."""
    sys.stderr.flush()
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(nowhere)
        os.close(stderr)
