"""Channel groups, sub-modules, cost and memory of any nn.Module."""
