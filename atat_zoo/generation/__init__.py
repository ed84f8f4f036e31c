"""Text from a model: prompts, masks, seeds and decoding around a sampler.

`generate` takes a `Model`; `write` takes a denoiser and a tokenizer, whatever
they come from.
"""

from atat_zoo.generation.service import Generation, fill, generate, write

__all__ = ["Generation", "fill", "generate", "write"]
