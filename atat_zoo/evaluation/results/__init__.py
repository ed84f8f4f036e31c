"""Results in a run folder: load, compare and format them, without torch or a model.

Only `store`, which defines a result, opens evaluations/; only `format` rounds.
"""
