"""Jobs: one page per command that reads top to bottom."""
