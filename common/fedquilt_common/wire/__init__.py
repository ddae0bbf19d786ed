"""Everything that crosses MQTT: topics, messages, chunks, numbers, the transport."""
