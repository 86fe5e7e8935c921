"""Numbers of a JSON value as MySQL prints them.

Source: ``my_gcvt`` in mysys/dtoa.cc, as json_dom.cc calls it.
"""

from __future__ import annotations

_PLAIN_FROM, _PLAIN_TO = -14, 15
"""my_gcvt writes a double plainly if its decimal point lies here (counted from the first digit), else with an exponent.
"""


def double_text(value: float) -> str:
    """Format a double as the server prints it in JSON: shortest digits, ``.0`` kept, exponents without ``+`` or
    zeros.
    """
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    integer, _, fraction = mantissa.lstrip("-").partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (integer + fraction).lstrip("0")
    point = int(exponent or 0) + len(integer)
    if integer == "0":
        point -= len(integer + fraction) - len(digits) if digits else 0
    digits = digits.rstrip("0") or "0"
    if digits == "0":
        return f"{sign}0.0"
    if _PLAIN_FROM <= point <= _PLAIN_TO or len(digits) > point > 0:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        if point >= len(digits):
            return f"{sign}{digits}{'0' * (point - len(digits))}.0"
        return f"{sign}{digits[:point]}.{digits[point:]}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1}"
