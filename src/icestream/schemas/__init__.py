"""Schemas compared, changed and put into Spark's DDL. Needs no JVM."""
