"""The store on etcd; refuses to be imported without the package ``etcd3`` (``kdir[etcd]``)."""
