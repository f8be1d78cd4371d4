"""Those who do the same work."""
