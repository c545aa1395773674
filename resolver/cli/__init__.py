"""The kdir command line: one file for each family of verbs. Servers
enforce every rule of the tree.
"""
