"""Where a run resumes, and what the last one left unfinished."""
