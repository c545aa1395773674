"""What a server process reports to Prometheus; only ``prometheus`` imports ``prometheus_client``,
once metrics are asked for.
"""
