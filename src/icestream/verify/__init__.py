"""Compares mirrored tables with the database that they mirror."""
