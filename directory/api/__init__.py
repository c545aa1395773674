"""gRPC services of a directory server: handlers, and the checks and messages that they share."""
