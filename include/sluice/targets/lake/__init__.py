"""What targets that keep tables as files of a lake share: columns and their types, rows as columns, tables of changes, the checkpoint."""
