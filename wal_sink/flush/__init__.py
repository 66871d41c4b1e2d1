"""Brings settled epochs from the log into the targets."""
