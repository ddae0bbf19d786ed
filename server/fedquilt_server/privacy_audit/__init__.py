"""Membership inference against a finished run: how much its models reveal of the samples that they were trained on."""
