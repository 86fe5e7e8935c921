"""What all kinds of targets share of following the source's schema changes."""
