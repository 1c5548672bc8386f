package ringnet_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"

	"github.com/ringnet/ringnet"
)

// An http.Server serves on any net.Listener.
func Example_httpServer() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "you asked for %s", r.URL.Path)
	})

	l, err := ringnet.Listen("auto", "127.0.0.1:0") // was net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }()

	client := &http.Client{Transport: &http.Transport{
		DialContext: (&ringnet.Dialer{ForTCP: "auto"}).DialContext,
	}}
	resp, err := client.Get("http://" + l.Addr().String() + "/index")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", body)
	client.CloseIdleConnections()
	if err := server.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: you asked for /index
}

// RDMA does not encrypt; crypto/tls does, on any net.Conn.
func Example_tls() {
	certificate, roots := certificateFor("ring.example") // from files, as a rule: tls.LoadX509KeyPair

	inner, err := ringnet.Listen("auto", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	l := tls.NewListener(inner, &tls.Config{Certificates: []tls.Certificate{certificate}})
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()

	plain, err := ringnet.Dial("auto", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	conn := tls.Client(plain, &tls.Config{RootCAs: roots, ServerName: "ring.example"})
	defer conn.Close()
	if _, err := io.WriteString(conn, "between us"); err != nil {
		log.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		log.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(answer), "and", conn.ConnectionState().PeerCertificates[0].DNSNames[0])
	// Output: between us and ring.example
}
