// Client fetches files by HTTP over RDMA, several at a time, and compares each
// with the file of the same name on this machine. It is a net/http client but
// for one line: a ringnet.Dialer where a net.Dialer would be.
package main

import (
	"context"
	"crypto/sha256"
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
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringnet/ringnet"
)

func main() {
	network := flag.String("network", "rdma", "network to dial")
	server := flag.String("server", "", "host:port of the server")
	dir := flag.String("dir", ".", "folder that the server serves, on this machine")
	parallel := flag.Int("parallel", 8, "files to fetch at once")
	wait := flag.Duration("wait", 0, "how long to wait for the server to listen")
	flag.Parse()

	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return dial(ctx, *network, addr, *wait)
		},
		MaxIdleConnsPerHost: *parallel,
	}}
	names, err := files(*dir, flag.Args())
	if err != nil {
		log.Fatal(err)
	}
	bytes, err := compareAll(client, *server, *dir, names, *parallel)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d files, %d bytes, all identical\n", len(names), bytes)
}

// dial connects to a server that may still be starting.
func dial(ctx context.Context, network, addr string, wait time.Duration) (net.Conn, error) {
	var d ringnet.Dialer
	for until := time.Now().Add(wait); ; time.Sleep(100 * time.Millisecond) {
		c, err := d.DialContext(ctx, network, addr)
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(until) {
			return c, err
		}
	}
}

// files lists the files below the given subfolders of dir.
func files(dir string, subfolders []string) (names []string, err error) {
	for _, sub := range subfolders {
		err := filepath.WalkDir(filepath.Join(dir, sub), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			name, err := filepath.Rel(dir, path)
			names = append(names, filepath.ToSlash(name))
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// compareAll compares the files, several at a time, and shows how far it is.
func compareAll(client *http.Client, server, dir string, names []string, parallel int) (int64, error) {
	var done, bytes atomic.Int64
	var failed error
	var once sync.Once
	queue := make(chan string)
	stop := make(chan struct{})
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for name := range queue {
				n, err := compare(client, server, dir, name)
				if err != nil {
					once.Do(func() { failed = fmt.Errorf("%s: %w", name, err); close(stop) })
					return
				}
				bytes.Add(n)
				if d := done.Add(1); d%100 == 0 {
					fmt.Printf("%d of %d files, %d bytes\n", d, len(names), bytes.Load())
				}
			}
		})
	}
feed:
	for _, name := range names {
		select {
		case queue <- name:
		case <-stop:
			break feed
		}
	}
	close(queue)
	workers.Wait()
	return bytes.Load(), failed
}

// compare fetches one file and compares its SHA-256 with that of the local one.
func compare(client *http.Client, server, dir, name string) (int64, error) {
	u := url.URL{Scheme: "http", Host: server, Path: "/" + name}
	resp, err := client.Get(u.String())
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, errors.New(resp.Status)
	}
	fetched := sha256.New()
	n, err := io.Copy(fetched, resp.Body)
	if err != nil {
		return 0, err
	}
	local := sha256.New()
	f, err := os.Open(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := io.Copy(local, f); err != nil {
		return 0, err
	}
	if [sha256.Size]byte(fetched.Sum(nil)) != [sha256.Size]byte(local.Sum(nil)) {
		return 0, errors.New("SHA-256 differs")
	}
	return n, nil
}
