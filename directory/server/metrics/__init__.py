"""Metrics of a server process. Only ``prometheus`` imports ``prometheus_client``, and only if
metrics are enabled.
"""
