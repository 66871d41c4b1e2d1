"""What may happen next: pure decisions, each with its argument."""
