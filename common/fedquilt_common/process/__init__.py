"""The process itself: memory, signals, watchdog."""
