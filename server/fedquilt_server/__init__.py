"""The workstation: coordinator, journal, status page."""
