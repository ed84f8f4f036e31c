"""Ratios that are measured, never tested: `make bench`, or `python -m benchmarks NAME …`."""
