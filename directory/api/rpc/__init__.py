"""Layers around every RPC handler: threads, bounds, deadlines, authentication and errors."""
