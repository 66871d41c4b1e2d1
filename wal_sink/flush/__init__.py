"""From the log to the target."""
