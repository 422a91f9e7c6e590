"""The public conformance suite of the Durable Streams protocol, run against `rt gateway`."""
