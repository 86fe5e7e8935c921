"""Recovery from every loss: look at the source's log, ZooKeeper, the segments and the targets; say what is lost; repair
it.
"""
