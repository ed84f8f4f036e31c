"""A run as a model of the Hugging Face hub: written by its backbone, with a card, and pushed if that is asked for.

There is no pipeline for `diffusers`: its schedulers step latents of pictures through noise levels of real numbers, and
its pipelines have no place for token ids; `transformers` has one for what this is, a masked language model.
"""
