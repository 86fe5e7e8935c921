"""The common part of targets that send messages: documents, keys, headers, and reading rows back from messages."""
