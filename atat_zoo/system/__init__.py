"""The machine's resources, and atomic, locked and parsed files.

Only `devices` imports torch.
"""
