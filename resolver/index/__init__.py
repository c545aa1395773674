"""The index: every topic of every cluster in one table; holds no code itself.

``schema`` says what a row is, ``discovery`` finds the clusters, ``scan`` reads one, ``source`` lets
Spark read them all, ``job`` writes them to the Delta table that ``table`` keeps, and ``search``
finds rows in it again, without Spark and Java.
"""
