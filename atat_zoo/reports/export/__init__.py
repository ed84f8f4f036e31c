"""A run as a model of the Hugging Face hub: written by its backbone, with a card, and pushed if that is asked for.

It has the form of a masked language model of `transformers`, which `LLaDA2Pipeline` of `diffusers` takes, too.
"""
