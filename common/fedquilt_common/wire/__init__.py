"""Everything that crosses MQTT: topics, control messages, chunks, number formats and the transport."""
