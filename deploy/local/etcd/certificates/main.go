// Command certificates makes a certificate authority and certificates signed by it, for servers on
// loopback in tests: `certificates FOLDER NAME…` writes ca.pem, NAME.pem and NAME-key.pem. Each is
// good for a server at 127.0.0.1 or localhost and for a client whose common name is NAME.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const validity = 30 * 24 * time.Hour

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: certificates FOLDER NAME…")
	}
	folder := os.Args[1]
	authority := template("kdir test authority")
	authority.IsCA = true
	authority.BasicConstraintsValid = true
	authority.KeyUsage = x509.KeyUsageCertSign
	authorityKey := newKey()
	save(filepath.Join(folder, "ca.pem"), "CERTIFICATE",
		sign(authority, authority, &authorityKey.PublicKey, authorityKey))
	for _, name := range os.Args[2:] {
		leaf := template(name)
		leaf.KeyUsage = x509.KeyUsageDigitalSignature
		leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		leaf.DNSNames = []string{"localhost"}
		leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		key := newKey()
		encoded, err := x509.MarshalPKCS8PrivateKey(key)
		check(err)
		save(filepath.Join(folder, name+"-key.pem"), "PRIVATE KEY", encoded)
		save(filepath.Join(folder, name+".pem"), "CERTIFICATE",
			sign(leaf, authority, &key.PublicKey, authorityKey))
	}
}

func template(commonName string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	check(err)
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
	}
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	return key
}

func sign(leaf, issuer *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) []byte {
	signed, err := x509.CreateCertificate(rand.Reader, leaf, issuer, public, by)
	check(err)
	return signed
}

func save(path, kind string, content []byte) {
	check(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
