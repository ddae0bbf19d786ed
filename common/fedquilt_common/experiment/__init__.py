"""The experiment and the agent configuration, as validated records."""
