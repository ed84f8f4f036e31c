"""Loading, comparing and formatting the results in a run folder, without running a model.

Only `store`, which defines a result, opens the files in evaluations/, and only `format` rounds numbers.
"""
