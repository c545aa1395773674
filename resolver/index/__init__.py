"""The index: every topic of every cluster in one table; holds no code itself.

``row_schema`` says what a row is, ``cluster_discovery`` finds the clusters, ``cluster_scan`` reads
one, ``spark_source`` lets Spark read them all, ``build`` writes them to the Delta table that
``delta_table`` keeps, and ``search`` finds rows in it again and counts them, without Spark and
Java.
"""
