"""What every target that sends messages needs: documents, keys, headers, names by template, and reading rows back from messages."""
