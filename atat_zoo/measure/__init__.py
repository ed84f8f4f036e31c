"""Measurements: what runs a model and returns its numbers, `measure(model, text, …) -> RunResult`.

Imports no torch: the specifications of judges are in this package too.
"""
