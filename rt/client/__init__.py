"""A client for programs: publishes to a cluster and reads from it, without further processes.

Imports the services, and of `rt.node` only what founds and describes a node; Spark, sites, gateway,
bridge and commands may import it.
"""
