"""What people can do to a pipeline: one table for the command line, the API, the page and the control DAG."""
