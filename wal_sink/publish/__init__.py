"""From a micro-batch to its manifest."""
