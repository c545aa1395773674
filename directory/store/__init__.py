"""Stores of one cluster: the contract, its implementations, and the replica and the
writer on top.
"""
