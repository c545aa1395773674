// Command etcd is the etcd server, built from its own module: no package system's etcd is new
// enough for the claims that kdir's tests make (deploy/local/etcd.py runs it).
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
