"""Version 1 of kdir's gRPC contract; every other module here is generated from its .proto file."""
