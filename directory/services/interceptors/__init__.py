"""One concern each, put around handlers in one visible order by ``server.py``."""
