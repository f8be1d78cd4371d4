"""Benchmarks: icestream beside its peers, on the same data, in the same run."""
