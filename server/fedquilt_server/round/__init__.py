"""The machine of a run: pure, without clock, I/O and threads."""
