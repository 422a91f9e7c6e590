"""A client for programs: publishers and subscribers of a cluster, without further processes."""
