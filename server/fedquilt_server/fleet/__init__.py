"""A fleet of boards that run: watch their health, upgrade them, show them in Home Assistant."""
