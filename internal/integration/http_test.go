//go:build linux

package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

func TestHTTPOverTLS(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%t", http2), func(t *testing.T) {
			body := (&stream{}).next(300_000)
			server := serve(t, func(w http.ResponseWriter, r *http.Request) {
				posted, err := io.ReadAll(r.Body)
				if err != nil || !bytes.Equal(posted, body) {
					http.Error(w, fmt.Sprintf("%d bytes, %v", len(posted), err), http.StatusBadRequest)
				}
				w.Write(body)
			})
			server.EnableHTTP2 = http2
			server.StartTLS()
			client := server.Client()
			transport := client.Transport.(*http.Transport)
			transport.DialContext = dial
			transport.TLSClientConfig.ServerName = "example.com" // whom the certificate is for
			var all []func() error
			for range 10 {
				all = append(all, func() error {
					resp, err := client.Post(server.URL, "application/octet-stream", bytes.NewReader(body))
					if err != nil {
						return err
					}
					defer resp.Body.Close()
					got, err := io.ReadAll(resp.Body)
					if err != nil || !bytes.Equal(got, body) || resp.ProtoAtLeast(2, 0) != http2 {
						return fmt.Errorf("%s, %s, %d bytes, %w", resp.Proto, resp.Status, len(got), err)
					}
					return nil
				})
			}
			atOnce(t, all...)
		})
	}
}

// TLS sends close_notify in both directions, one after the other.
func TestTLSCloseWrite(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	d, a := pair(t)
	client := tls.Client(d, &tls.Config{
		RootCAs: cert.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"})
	server := tls.Server(a, cert.TLS)
	atOnce(t, func() error {
		if err := (&stream{}).send(client, 100_000, 10_000); err != nil {
			return err
		}
		if err := client.CloseWrite(); err != nil {
			return err
		}
		return (&stream{}).receiveAll(client, 50_000)
	}, func() error {
		if err := (&stream{}).receiveAll(server, 100_000); err != nil {
			return err
		}
		if err := (&stream{}).send(server, 50_000, 10_000); err != nil {
			return err
		}
		return server.Close()
	})
}

// A reverse proxy joins two connections when the protocol is upgraded, and passes on the
// end of each direction by itself.
func TestReverseProxyOfAnUpgrade(t *testing.T) {
	backend := serve(t, func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n")
		said, err := io.ReadAll(rw)
		if err == nil {
			c.Write(bytes.ToUpper(said))
		}
	})
	backend.Start()
	to, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{DialContext: dial}
	front := serve(t, proxy.ServeHTTP)
	front.Start()

	c, err := dial(t.Context(), "tcp", front.Listener.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: front\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	fmt.Fprint(c, "hello")
	require.NoError(t, c.(*ringnet.Conn).CloseWrite())
	answer, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "HELLO", string(answer))
}

// serve returns an HTTP server over RDMA, not yet started.
func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Listener.Close()
	server.Listener = listen(t, ringnet.ListenConfig{})
	t.Cleanup(server.Close)
	return server
}

// dial is the DialContext of an http.Transport.
func dial(ctx context.Context, _, addr string) (net.Conn, error) {
	return (&ringnet.Dialer{}).DialContext(ctx, "rdma", addr)
}
