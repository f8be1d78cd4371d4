"""One stream into many tables: `route_by` and mirrors of a database."""
