"""Compares and changes schemas. Needs no JVM."""
