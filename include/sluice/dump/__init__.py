"""Dumps: chunks of a table in key order, the SQL that selects them, and what survives between two watermarks. Pure: no socket, no clock."""
