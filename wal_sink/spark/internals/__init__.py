"""Wraps every undocumented name of Spark that the sink uses; no other package uses such a name."""
