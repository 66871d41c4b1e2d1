"""Faults, pauses and kills, injected from outside."""
