"""migrate: from one server to another, with a way back.

Two one-way pipelines, of which one works at a time: each handover begins the other one at the head of a server that is
closed and equal, so that no row goes round. A step is noted in the store of positions before it is done, and a process
that takes over asks the servers which of the steps were done.
"""
