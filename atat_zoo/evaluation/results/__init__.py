"""Loading, comparing and formatting the results in a run folder, without torch or a model.

Only `store`, which defines a result, opens evaluations/, and only `format` rounds numbers.
"""
