"""Memory, devices and environment of this machine; errors; and functions that write, lock and parse files.

Only `devices` imports torch.
"""
