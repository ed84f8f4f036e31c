"""The machine's resources, and files: atomic, locked, parsed.

Imports no torch.
"""
