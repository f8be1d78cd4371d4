"""Pipelines in Python, without YAML."""
