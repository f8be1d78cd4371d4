"""Changes of PostgreSQL tables."""
