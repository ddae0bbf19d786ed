"""Differential privacy: the accountant, the ledger of what a board has spent, and the secret noise."""
