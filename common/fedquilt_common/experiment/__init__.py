"""Settings: the experiment and an agent's configuration."""
