"""The common part of targets that send messages: documents, keys, headers, names by template, and reading rows back from messages."""
