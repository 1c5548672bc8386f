// Client fetches files by HTTP/3 over datagrams of ringnet, several at a time, and compares
// the SHA-256 of each with that of the file of the same name on this machine. It is a
// client of quic-go; the only change is ringnet.ListenPacket in place of net.ListenPacket.
//
//	go run ./http3/client -network shm-udp -server 127.0.0.1:8443 -dir /usr/share/doc
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/ringnet/ringnet"
)

func main() {
	log.SetFlags(0)
	network := flag.String("network", "shm-udp", "network to send on: shm-udp, rdma-udp; udp is package net's, to compare with")
	server := flag.String("server", "127.0.0.1:8443", "host:port of the server")
	dir := flag.String("dir", ".", "folder that the server serves, on this machine")
	cert := flag.String("cert", "cert.pem", "certificate of the server, for ring.example")
	parallel := flag.Int("parallel", 8, "files to fetch at once")
	flag.Parse()

	listen := ringnet.ListenPacket
	if *network == "udp" {
		listen = net.ListenPacket
	}
	conn, err := listen(*network, ":0")
	if err != nil {
		log.Fatal(err)
	}
	client, err := newClient(conn, *cert)
	if err != nil {
		log.Fatal(err)
	}
	start := time.Now()
	files, bytes, err := compareAll(client, *server, os.DirFS(*dir), *parallel)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d files, %d bytes, all with the same SHA-256, over %s, in %v\n", files, bytes, conn.LocalAddr().Network(), time.Since(start))
	if c, ok := conn.(*ringnet.PacketConn); ok {
		s := c.Stats()
		fmt.Printf("datagrams: %d sent, %d received, %d missed, %d refused\n", s.Sent, s.Received, s.Missed, s.Refused)
	}
}

// newClient returns a client of HTTP/3, whose packets all go over conn.
func newClient(conn net.PacketConn, cert string) (*http.Client, error) {
	pem, err := os.ReadFile(cert)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New(cert + " has no certificate")
	}
	transport := &quic.Transport{Conn: conn}
	return &http.Client{Transport: &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "ring.example"},
		Dial: func(ctx context.Context, addr string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
			to, err := net.ResolveUDPAddr("udp", addr)
			if err != nil {
				return nil, err
			}
			return transport.DialEarly(ctx, to, t, q)
		},
	}}, nil
}

// compareAll compares the files of a folder, several at a time, and returns how many
// there are and how many bytes they have.
func compareAll(client *http.Client, server string, dir fs.FS, parallel int) (files, bytes int64, err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	names := make(chan string)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for name := range names {
				n, err := compare(ctx, client, server, dir, name)
				if err != nil {
					cancel(fmt.Errorf("%s: %w", name, err))
				}
				atomic.AddInt64(&files, 1)
				atomic.AddInt64(&bytes, n)
			}
		})
	}
	err = fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		select {
		case names <- name:
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	})
	close(names)
	workers.Wait()
	return files, bytes, errors.Join(err, context.Cause(ctx))
}

// compare fetches a file, and compares its sum with that of this machine's.
func compare(ctx context.Context, client *http.Client, server string, dir fs.FS, name string) (int64, error) {
	file, err := dir.Open(name)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	want := sha256.New()
	if _, err := io.Copy(want, file); err != nil {
		return 0, err
	}
	u := url.URL{Scheme: "https", Host: server, Path: "/" + name}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, errors.New(resp.Status)
	}
	got := sha256.New()
	n, err := io.Copy(got, resp.Body)
	if err != nil {
		return n, err
	}
	if a, b := want.Sum(nil), got.Sum(nil); string(a) != string(b) {
		return n, fmt.Errorf("its SHA-256 is %x, and that of what came %x", a, b)
	}
	return n, nil
}
