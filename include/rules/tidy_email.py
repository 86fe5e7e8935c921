"""A sample rule: e-mail addresses are written in one way, without blanks and (if `lower` is set) in lower case.

`transform` gets a row as a dict of column names and values (int, Decimal, str, bytes, date, datetime, timedelta, None)
and returns the row, None to keep it away from the targets, or a list of rows. `context` has op (insert, update,
delete), before, schema, table, key, params and commit_time.
"""


def transform(row, context):
    """Strip the address, and write it in lower case if the parameter ``lower`` is set. Return the row."""
    email = row.get("email")
    if email is not None:
        email = email.strip()
        row["email"] = email.lower() if context.params.get("lower") else email
    return row
