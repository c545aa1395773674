"""The kdir command line, with one file for each family of verbs. The servers enforce the rules of
the tree.
"""
