"""The subscription service: what the batches of pipelines hold, for readers that are no targets of theirs."""
