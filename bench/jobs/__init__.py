"""Programs that contenders run."""
