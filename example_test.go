package ringnet_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/ringnet/ringnet"
)

func ExampleDial() {
	l := serve("hello from the other end") // somewhere else

	conn, err := ringnet.Dial("auto", l.Addr().String()) // "10.0.0.1:8080", "db.example:postgresql"
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	said, err := io.ReadAll(conn)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(said))
	// Output: hello from the other end
}

func ExampleListen() {
	l, err := ringnet.Listen("auto", "127.0.0.1:0") // ":8080"
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // errors.Is(err, net.ErrClosed): l was closed
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()

	conn, err := ringnet.Dial("auto", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, "is there an echo?")
	answer := make([]byte, len("is there an echo?"))
	if _, err := io.ReadFull(conn, answer); err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(answer))
	// Output: is there an echo?
}

// A service that runs as one user takes connections over shared memory of another user: www-data, for example.
func ExampleListenConfig_trustUser() {
	webServer := uint32(os.Geteuid() + 1) // user.Lookup("www-data") tells whose it is
	lc := ringnet.ListenConfig{
		TrustUser: func(uid uint32) bool { return uid == webServer }, // this process's own is not asked for
	}
	l, err := lc.Listen(context.Background(), "shm", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		uid, known := conn.(*ringnet.Conn).PeerUser()
		fmt.Fprint(conn, "web server: ", uid == webServer, ", known: ", known)
	}()

	// The other user's program trusts this service's user in the same way, unless that is root.
	d := ringnet.Dialer{TrustUser: func(uid uint32) bool { return uid == uint32(os.Geteuid()) }}
	conn, err := d.Dial("shm", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	answer, err := io.ReadAll(conn)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(answer))
	// Output: web server: false, known: true
}

// Deadlines and errors are as in package net.
func ExampleConn() {
	l := serve("") // accepts, and closes at once
	conn, err := ringnet.Dial("auto", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	_, err = io.ReadAll(conn)
	fmt.Println("to the end:", err)

	_ = conn.SetReadDeadline(time.Now().Add(-time.Second))
	_, err = conn.Read(make([]byte, 1))
	fmt.Println("too late:", errors.Is(err, os.ErrDeadlineExceeded))

	_ = conn.Close()
	_, err = conn.Read(make([]byte, 1))
	fmt.Println("closed:", errors.Is(err, net.ErrClosed))
	// Output:
	// to the end: <nil>
	// too late: true
	// closed: true
}

// What has arrived is hashed where the device has placed it.
func ExampleConn_peek() {
	l := serve("a blob") // on auto
	conn, err := ringnet.Dial("auto", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	hash := sha256.New()
	ring, ok := conn.(*ringnet.AutoConn).NetConn().(*ringnet.Conn)
	if !ok { // over TCP there is none
		_, _ = io.Copy(hash, conn)
	}
	for ok {
		if _, err = ring.Peek(1); err != nil {
			break // io.EOF, unless the connection was lost
		}
		p, _ := ring.Peek(ring.Buffered())
		_, _ = hash.Write(p)
		if _, err = ring.Discard(len(p)); err != nil {
			log.Fatal(err) // closed meanwhile: anything may have been hashed
		}
	}
	fmt.Println(hex.EncodeToString(hash.Sum(nil)[:4]), err == nil || errors.Is(err, io.EOF))
	// Output: 5570a3cf true
}

// A file server with two buffers for each connection: one is filled while the device
// sends the other, and no byte is copied by this program.
func ExampleBuffer() {
	l, err := ringnet.Listen("shm", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		accepted, err := l.Accept()
		if err != nil {
			return
		}
		defer accepted.Close()
		conn := accepted.(*ringnet.Conn)
		file, err := os.Open("LICENSE")
		if err != nil {
			return
		}
		defer file.Close()
		var buffers [2]*ringnet.Buffer
		for i := range buffers {
			if buffers[i], err = conn.NewBuffer(4 << 10); err != nil {
				return
			}
			defer buffers[i].Close()
		}
		for turn := 0; err == nil; turn++ {
			b := buffers[turn%2]
			b.Wait() // until the device has sent what it held
			if _, err = b.Fill(file); err == nil {
				_, err = conn.WriteBuffer(b)
			}
		}
	}()

	conn, err := ringnet.Dial("shm", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err != nil {
		log.Fatal(err)
	}
	want, err := os.ReadFile("LICENSE")
	fmt.Println(err, bytes.Equal(got, want))
	// Output: <nil> true
}

func ExampleDialer() {
	l := serve("hello")
	d := ringnet.Dialer{
		Timeout: 3 * time.Second,
		Config:  &ringnet.Config{RecvBuffer: 1 << 20}, // for a fast link, or a long one
	}
	conn, err := d.Dial("auto", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	said, err := io.ReadAll(conn)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(said))
	// Output: hello
}

// Why is this connection not on RDMA?
func ExampleAutoConn_PassedOver() {
	os.Setenv("RINGNET_NETWORKS", "tcp") // so that the answer is the same everywhere
	defer os.Unsetenv("RINGNET_NETWORKS")
	l := serve("hello")
	conn, err := ringnet.Dial("auto", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Println("carried by", conn.(*ringnet.AutoConn).Carrier())
	for _, reason := range conn.(*ringnet.AutoConn).PassedOver() {
		fmt.Printf("not by %s: %s (%v)\n", reason.Network, reason.Code, reason.Err)
	}
	// Output:
	// carried by tcp
	// not by shm: switched-off (switched off by RINGNET_NETWORKS or Require)
	// not by rdma: switched-off (switched off by RINGNET_NETWORKS or Require)
}

// An error where a connection would have fallen back to TCP, with the reason.
func ExampleDialer_require() {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a server without ringnet
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	d := ringnet.Dialer{Require: []string{"shm"}}
	_, err = d.Dial("auto", l.Addr().String())
	var reason ringnet.Reason
	if errors.As(err, &reason) {
		fmt.Println(reason.Network, reason.Code)
	}
	// Output: shm no-listener
}

// What happens to dials, connections and links goes to a log.
func ExampleTrace() {
	logger := exampleLogger() // slog.Default()
	trace := &ringnet.Trace{
		Dialed: func(e ringnet.DialEvent) {
			logger.Info("dialed", "network", e.Network, "over", e.Carrier, "took", e.Took, "passed over", e.PassedOver, "error", e.Err)
		},
		LinkDown: func(l ringnet.LinkInfo, cause error) {
			if cause != nil {
				logger.Warn("link lost", "to", l.Remote, "connections", l.Connections, "cause", cause)
			}
		},
		Closed: func(e ringnet.CloseEvent) {
			logger.Info("closed", "over", e.Carrier, "written", e.Stats.BytesWritten, "received", e.Stats.BytesReceived, "age", e.Age, "error", e.Err)
		},
	}
	l := serve("hello") // somewhere else

	conn, err := (&ringnet.Dialer{Trace: trace}).Dial("auto", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		log.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// level=INFO msg=dialed network=auto error=<nil>
	// level=INFO msg=closed written=0 received=5 error=<nil>
}

// What this process has done since it started, for an exporter of metrics.
func ExampleTotals() {
	for network, t := range ringnet.Totals() {
		log.Print(network, ": ", t.Opened-t.Closed, " connections, ", t.BytesSent, " bytes sent")
		for code, n := range t.PassedOver {
			log.Print(network, ": passed over ", n, " times: ", code)
		}
		for code, n := range t.Failed {
			log.Print(network, ": dialers had no connection ", n, " times: ", code)
		}
	}
}

// exampleLogger leaves out what is different each time.
func exampleLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case slog.TimeKey, "over", "took", "age", "passed over":
				return slog.Attr{}
			}
			return a
		},
	}))
}

// serve sends the same text to each client that connects.
func serve(what string) net.Listener {
	l, err := ringnet.Listen("auto", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, what)
			_ = conn.(interface{ CloseWrite() error }).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	return l
}

// certificateFor makes a self-signed certificate.
func certificateFor(name string) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{name},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		log.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}
