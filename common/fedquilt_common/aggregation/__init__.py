"""Computations on client updates: averages, soft labels, client evaluation, rebalanced data sets."""
