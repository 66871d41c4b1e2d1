"""Starts, kills, pauses and ends the servers of the demo and of the tests."""
