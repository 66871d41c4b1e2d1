"""From rows of the log to acknowledged requests."""
