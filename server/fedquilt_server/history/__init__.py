"""What happened in a run, derived from its journal: replies, events and counts of each board."""
