"""How bytes become rows: one module for each format, and what they share."""
