"""Run folders on disk: find them, read them, compare them and show them."""
