"""What this machine has, and files: atomic, locked, parsed. Imports no torch."""
