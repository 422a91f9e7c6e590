"""What an engine must not forget, durable in one directory."""
