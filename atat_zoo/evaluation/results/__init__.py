"""Results: what was measured, as a run folder keeps it: read, compared and put in words, without torch or a model.

`store` has what a result is and alone opens evaluations/, `format` is the only one that rounds.
"""
