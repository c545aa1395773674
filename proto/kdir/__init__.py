"""The root of the generated contract; the modules are in `kdir.v1`."""
