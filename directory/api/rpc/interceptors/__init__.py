"""Interceptors of one concern each, ordered by ``handlers.py``."""
