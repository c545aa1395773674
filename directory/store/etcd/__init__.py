"""Store on etcd, which needs the package ``etcd3`` (``kdir[etcd]``)."""
