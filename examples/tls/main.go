// TLS sends a message to a server over crypto/tls. RDMA itself does not encrypt, and neither
// side would know who the other is. Both are in this process, which makes a certificate:
//
//	go run ./tls
//	go run ./tls -network rdma -addr 10.0.0.1:0
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"time"

	"github.com/ringnet/ringnet"
)

const serverName = "ring.example"

func main() {
	network := flag.String("network", "auto", "auto, shm or rdma")
	addr := flag.String("addr", "127.0.0.1:0", "address to listen on; of an RDMA device, for rdma")
	flag.Parse()
	certificate, roots, err := newCertificate()
	if err != nil {
		log.Fatal(err)
	}

	plain, err := ringnet.Listen(*network, *addr)
	if err != nil {
		log.Fatal(err)
	}
	go serve(tls.NewListener(plain, &tls.Config{Certificates: []tls.Certificate{certificate}}))

	conn, err := ringnet.Dial(*network, plain.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	c := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: serverName})
	if _, err := io.WriteString(c, "hello, who are you?"); err != nil {
		log.Fatal(err) // the handshake's error too
	}
	if err := c.CloseWrite(); err != nil {
		log.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		log.Fatal(err)
	}
	state := c.ConnectionState()
	fmt.Printf("%s %s with %s, over %s\n", answer, state.PeerCertificates[0].DNSNames[0],
		tls.VersionName(state.Version), conn.(interface{ Carrier() string }).Carrier())
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
}

func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer c.Close()
			if _, err := io.ReadAll(c); err != nil {
				log.Print(err)
				return
			}
			if _, err := io.WriteString(c, "hello, I am"); err != nil {
				log.Print(err)
			}
		}()
	}
}

// newCertificate makes a self-signed certificate. Programs usually read theirs from files,
// by tls.LoadX509KeyPair.
func newCertificate() (tls.Certificate, *x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{serverName},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots, nil
}
