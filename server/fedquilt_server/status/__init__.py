"""What a user sees of a run: the status snapshot, the results, the agent list and the terminal."""
