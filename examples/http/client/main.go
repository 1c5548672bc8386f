// Client fetches files by HTTP, several at a time, and compares each with the
// file of the same name on this machine. It is a client of net/http; the only change is a
// ringnet.Dialer in place of a net.Dialer.
//
//	cd examples && go run ./http/client -network auto -server 127.0.0.1:8080 -dir /usr/share/doc
package main

import (
	"bytes"
	"context"
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
	"strings"
	"sync"
	"time"

	"github.com/ringnet/ringnet"
)

func main() {
	log.SetFlags(0)
	network := flag.String("network", "auto", "network to dial; tcp is package net's, to compare with")
	server := flag.String("server", "127.0.0.1:8080", "host:port of the server")
	dir := flag.String("dir", ".", "folder that the server serves, on this machine; arguments are subfolders of it")
	parallel := flag.Int("parallel", 8, "files to fetch at once")
	flag.Parse()

	dial := new(ringnet.Dialer).DialContext
	if *network == "tcp" {
		dial = new(net.Dialer).DialContext
	}
	var used sync.Map // the networks that carry the connections
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			c, err := dial(ctx, *network, addr)
			if err == nil {
				if _, known := used.LoadOrStore(carrier(c), nil); !known {
					explain(c)
				}
			}
			return c, err
		},
		MaxIdleConnsPerHost: *parallel,
	}}
	files, total, err := load(*dir, flag.Args())
	if err != nil {
		log.Fatal(err)
	}
	start := time.Now()
	if err := compareAll(client, *server, files, *parallel); err != nil {
		log.Fatal(err)
	}
	took := time.Since(start)
	var networks []string
	used.Range(func(network, _ any) bool {
		networks = append(networks, network.(string))
		return true
	})
	fmt.Printf("%d files, %d bytes, all identical, over %s, in %v\n", len(files), total, strings.Join(networks, " and "), took)
}

// carrier returns the network that carries a connection.
func carrier(c net.Conn) string {
	if ours, ok := c.(interface{ Carrier() string }); ok {
		return ours.Carrier()
	}
	return c.LocalAddr().Network()
}

// explain prints which network carries a connection, and why a better one does not.
func explain(c net.Conn) {
	fmt.Println("connected over", carrier(c))
	if auto, ok := c.(*ringnet.AutoConn); ok {
		for _, reason := range auto.PassedOver() {
			fmt.Println("passed over", reason)
		}
	}
}

// load reads the files below the given subfolders of dir, or below dir itself,
// and returns how many bytes they have.
func load(dir string, subfolders []string) (files map[string][]byte, total int, err error) {
	if len(subfolders) == 0 {
		subfolders = []string{"."}
	}
	files = make(map[string][]byte)
	root := os.DirFS(dir)
	for _, sub := range subfolders {
		err := fs.WalkDir(root, sub, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			files[name], err = fs.ReadFile(root, name)
			total += len(files[name])
			return err
		})
		if err != nil {
			return nil, 0, err
		}
	}
	return files, total, nil
}

// compareAll compares the files, several at a time, and prints its progress.
func compareAll(client *http.Client, server string, files map[string][]byte, parallel int) error {
	queue := make(chan string)
	results := make(chan error)
	for range parallel {
		go func() {
			for name := range queue {
				results <- compare(client, server, name, files[name])
			}
		}()
	}
	go func() {
		defer close(queue)
		for name := range files {
			queue <- name
		}
	}()
	for done := 1; done <= len(files); done++ {
		if err := <-results; err != nil {
			return err
		}
		if done%500 == 0 {
			fmt.Printf("%d of %d files\n", done, len(files))
		}
	}
	return nil
}

// compare fetches one file and compares it with this machine's.
func compare(client *http.Client, server, name string, want []byte) error {
	u := url.URL{Scheme: "http", Host: server, Path: "/" + name}
	resp, err := client.Get(u.String())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", name, resp.Status)
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !bytes.Equal(got, want) {
		return errors.New(name + ": what came differs from the file")
	}
	return nil
}
