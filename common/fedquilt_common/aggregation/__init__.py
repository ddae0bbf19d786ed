"""What the coordinator computes from client updates."""
