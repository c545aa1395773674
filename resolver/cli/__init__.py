"""The kdir command line: one file for each family of verbs. Every rule of the tree is
the servers'.
"""
