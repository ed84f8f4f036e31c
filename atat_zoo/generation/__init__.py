"""Text from a denoiser: prompts, masks, seeds and decoding around a sampler.

A `Writer` is a denoiser with its tokenizer, from any source; `Model.writer` returns one for a trained model.
`infill` uses it to fill the gaps of given texts.
"""

from atat_zoo.generation.infilling import Filled, Infilling, infill
from atat_zoo.generation.writer import Generation, Writer

__all__ = ["Filled", "Generation", "Infilling", "Writer", "infill"]
