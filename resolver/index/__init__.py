"""Index of every topic of every cluster in one table.

``row_schema`` defines a row, ``cluster_discovery`` finds the clusters, ``cluster_scan`` reads one
cluster, ``spark_source`` reads all of them with Spark, ``build`` updates the Delta table
(``delta_table``), and ``search`` finds and counts rows without Spark and Java. ``changes`` (Spark)
and ``audit_query`` (DuckDB) read the change logs.
"""
