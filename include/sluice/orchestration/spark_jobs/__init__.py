"""The entry points of ``spark-submit``: one file for each kind of stage."""
