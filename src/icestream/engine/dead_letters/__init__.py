"""Rows that could not be written: kept, written once, and replayed."""
