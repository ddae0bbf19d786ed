"""Trace any nn.Module: its channel groups, its sub-modules, and what training them costs."""
