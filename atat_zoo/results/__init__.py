"""Results: what was measured, as a run folder keeps it: read, compared and put in words, without torch or a model.

`record` has what a result is, `store` is the only module that opens evaluations/, `format` the only one that rounds.
"""
