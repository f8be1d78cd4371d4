"""`route_by`: one stream into many tables."""
