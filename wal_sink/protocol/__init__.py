"""Decides how the state of a log may change, and the next step of a flusher. Pure functions.

The docstring of each function says why its decision is safe.
"""
