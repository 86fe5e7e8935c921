"""The common part of targets that keep tables as files of a lake: columns and their types, rows as columns, tables of
changes, the checkpoint.
"""
