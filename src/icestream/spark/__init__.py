"""Everything that starts or configures Spark."""
