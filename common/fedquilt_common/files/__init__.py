"""Files: durable writes, locks and YAML."""
