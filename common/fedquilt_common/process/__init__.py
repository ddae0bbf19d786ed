"""The process: memory of the C library, signals and the watchdog."""
