"""Descriptions of what a column of a target does not keep of the values that it takes."""

from __future__ import annotations


class Loss(str):
    """A description of values that are changed without an error, so that the source's value cannot be had back.

    Plain text describes what loses nothing: values that are refused, or that are written in another form.
    """

    __slots__ = ()


def together(*descriptions: str) -> str:
    """Join descriptions, without empty ones. The result is a :class:`Loss` if one of them is."""
    words = "; ".join(filter(None, descriptions))
    return Loss(words) if any(isinstance(description, Loss) for description in descriptions) else words
