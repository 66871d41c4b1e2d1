"""Adds the values of some columns to what the table holds (`cassandra.addColumns`); no I/O."""
