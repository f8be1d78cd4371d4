"""One batch: what it reads, decodes, transforms and hands to the sink."""
