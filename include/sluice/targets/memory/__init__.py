"""A target in the memory of this process, with any combination of capabilities: for tests of flows, and as the example
of the port.
"""
