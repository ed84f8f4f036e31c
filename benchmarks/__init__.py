"""Benchmarks, which measure ratios and are not part of the tests: `make bench` or `python -m benchmarks NAME …`."""
