"""Membership inference against a finished run: how much its models tell of the samples that they were trained on."""
