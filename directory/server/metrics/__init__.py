"""What a server process tells Prometheus; counting is here, and only ``http_endpoint``
and ``collector`` import ``prometheus_client``, once metrics are asked for.
"""
