"""The driver of a run, between the broker, the machine and the journal."""
