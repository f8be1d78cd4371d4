"""Tables that follow those of a database: created, filled and changed as it changes them."""
