"""The limit of an announced restart."""

from datetime import timedelta

MAX_GRACE = timedelta(days=7)
"""Longest time for which an announced restart keeps other installations waiting."""
