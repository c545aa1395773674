"""One concern each, put around handlers in one visible order by ``grpc_server.py``."""
