"""Measurements on the user's own database: each beside the same path with the bare driver, in the same run."""
