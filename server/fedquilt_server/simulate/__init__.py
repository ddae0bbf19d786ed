"""Run a whole federation on one machine, as supervised processes."""
