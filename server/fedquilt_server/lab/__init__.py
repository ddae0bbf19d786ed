"""What the server half of an algorithm may touch."""
