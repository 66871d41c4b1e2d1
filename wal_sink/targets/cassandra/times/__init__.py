"""Knows the times that rows bring along: how long each lives, and which of two versions is newer."""
