"""Benchmarks: icestream and its peers, on the same data, in the same run."""
