"""How a torch model is made of channel groups, found by tracing it, and modules cut to a sub-model."""
