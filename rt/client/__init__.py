"""A client for programs: publishes to a cluster and reads from it, without further processes.

Imports the services and `rt.node`, of a node only what founds and describes it; Spark, sites,
gateway, bridge and commands may import it.
"""
