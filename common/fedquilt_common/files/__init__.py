"""Files that survive a crash: durable writes, locks, YAML."""
