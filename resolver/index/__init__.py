"""Index of every topic of every cluster in one table.

``row_schema`` defines a row, ``cluster_discovery`` finds the clusters, ``cluster_scan`` reads one,
``spark_source`` lets Spark read them all, ``build`` writes them to the Delta table of
``delta_table``, and ``search`` finds and counts rows without Spark and Java. ``changes`` (Spark)
and ``audit_query`` (DuckDB) read the change logs.
"""
