"""The common part of SQL targets, whatever their dialect: how a batch is cut into phases, foreign keys in order,
rejected rows by bisection.
"""
