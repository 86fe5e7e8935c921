"""Files that rows name: fetched from one location and written to another, before the rows are loaded."""
