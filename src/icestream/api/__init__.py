"""The same parts without YAML."""
