"""Identities: a federation's certificate authority, its broker's configuration, and what each board is given."""
