"""Dry runs: records pass through a pipeline's decoding and transforms, and nothing is written."""
