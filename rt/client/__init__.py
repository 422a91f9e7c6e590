"""A client for programs: publishes to a cluster and reads from it, without further processes."""
