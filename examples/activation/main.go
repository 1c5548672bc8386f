// Activation serves on a socket that systemd holds, so that a restart refuses no client: one
// that connects while no server runs waits for the next server.
//
//	cp activation.socket activation.service /etc/systemd/system/
//	systemctl enable --now activation.socket
//
// Without systemd it listens by itself:
//
//	cd examples && go run ./activation -addr 127.0.0.1:8080
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/ringnet/ringnet"
)

// connKey is the key of the connection in the context of its requests.
type connKey struct{}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on without systemd")
	flag.Parse()
	l, err := listen(*addr)
	if err != nil {
		log.Fatal(err)
	}
	log.Print("listening on ", l.Addr())

	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, "process", os.Getpid(), "says hello over", r.Context().Value(connKey{}).(*ringnet.AutoConn).Carrier())
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	done := make(chan error, 1)
	go func() {
		<-terminated.Done()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		done <- server.Shutdown(ctx) // answers what has been asked; the socket stays systemd's
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	if err := <-done; err != nil {
		log.Fatal(err)
	}
}

// listen takes the first socket that systemd passes (sd_listen_fds(3)), or makes
// one.
func listen(addr string) (net.Listener, error) {
	pid, _ := strconv.Atoi(os.Getenv("LISTEN_PID"))
	if pid != os.Getpid() || os.Getenv("LISTEN_FDS") == "" {
		return ringnet.Listen("auto", addr)
	}
	const first = 3
	f := os.NewFile(first, "socket of systemd")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("the socket of systemd is at %v: want ListenStream with a TCP port", l.Addr())
	}
	return new(ringnet.ListenConfig).ListenOn(tcp)
}
