"""Steps that several algorithms share."""
