"""Training in one place, without clients: the baseline of a federated run."""
