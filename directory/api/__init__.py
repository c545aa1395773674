"""The gRPC face of a directory server: thin handlers, interceptors of one concern each."""
