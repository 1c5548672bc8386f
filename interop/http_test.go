package interop

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// site is an http.Server on a network, and a client of it.
type site struct {
	client *http.Client
	url    string
	addr   string
}

// protocol is a version of HTTP with or without TLS.
type protocol struct {
	name string
	tls  bool
	want int // http.Request.ProtoMajor
	set  func(*http.Protocols)
}

var protocols = []protocol{
	{"http1", false, 1, func(p *http.Protocols) { p.SetHTTP1(true) }},
	{"https1", true, 1, func(p *http.Protocols) { p.SetHTTP1(true) }},
	{"https2", true, 2, func(p *http.Protocols) { p.SetHTTP2(true) }},
	{"h2c", false, 2, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }},
}

// overEachProtocol runs a test over each protocol on each network.
func overEachProtocol(t *testing.T, test func(t *testing.T, n network, p protocol)) {
	overEachNetwork(t, func(t *testing.T, n network) {
		for _, p := range protocols {
			t.Run(p.name, func(t *testing.T) { test(t, n, p) })
		}
	})
}

// serve starts a site.
func serve(t *testing.T, n network, p protocol, h http.HandlerFunc) *site {
	t.Helper()
	l := n.listen(t)
	server := &http.Server{Handler: h, Protocols: new(http.Protocols), ErrorLog: log.New(io.Discard, "", 0)}
	transport := &http.Transport{DialContext: n.dialer().DialContext, Protocols: new(http.Protocols)}
	p.set(server.Protocols)
	p.set(transport.Protocols)
	s := &site{client: &http.Client{Transport: transport}, addr: l.Addr().String()}
	if p.tls {
		s.url = "https://" + s.addr
		server.TLSConfig, transport.TLSClientConfig = certificate(t, n)
		go server.ServeTLS(l, "", "")
	} else {
		s.url = "http://" + s.addr
		go server.Serve(l)
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	return s
}

func TestHTTPCarriesLargeBodiesBothWays(t *testing.T) {
	overEachProtocol(t, func(t *testing.T, n network, p protocol) {
		s := serve(t, n, p, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || r.ProtoMajor != p.want {
				http.Error(w, fmt.Sprint(r.Proto, err), http.StatusBadRequest)
				return
			}
			w.Header().Set("Trailer", "Length")
			_, _ = w.Write(body)
			w.Header().Set("Length", strconv.Itoa(len(body)))
		})
		sent := randomBytes(2<<20 + 1)
		resp, err := s.client.Post(s.url, "application/octet-stream", bytes.NewReader(sent))
		require.NoError(t, err)
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		requireSame(t, sent, got)
		require.Equal(t, strconv.Itoa(len(sent)), resp.Trailer.Get("Length"))
	})
}

// proxy serves an httputil.ReverseProxy to the site.
func proxy(t *testing.T, n network, to *site) *site {
	t.Helper()
	target, err := url.Parse(to.url)
	require.NoError(t, err)
	p := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: to.client.Transport,
	}
	return serve(t, n, protocols[0], p.ServeHTTP)
}

// An upgraded connection is two streams that end one after the other. The backend answers
// only after the end of what the client sends, so client, proxy and backend must pass that
// on as a half-close. The answer must come back over the half that is still open.
func TestReverseProxyPassesOnTheHalvesOfAnUpgradedConnection(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		front := proxy(t, n, serve(t, n, protocols[0], sum))
		c, err := n.dialer().DialContext(t.Context(), "tcp", front.addr)
		require.NoError(t, err)
		defer c.Close()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.url, nil)
		require.NoError(t, err)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "sum")
		require.NoError(t, req.Write(c))
		answer := bufio.NewReader(c)
		resp, err := http.ReadResponse(answer, req)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)

		sent := randomBytes(2<<20 + 1)
		_, err = c.Write(sent)
		require.NoError(t, err)
		require.NoError(t, c.(conn).CloseWrite())
		got, err := io.ReadAll(answer)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(sent)), string(got))
	})
}

// sum upgrades the connection to a protocol whose answer is the SHA-256 of all that was
// sent.
func sum(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "sum")
	w.WriteHeader(http.StatusSwitchingProtocols)
	c, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	h := sha256.New()
	if _, err := io.Copy(h, buffered); err != nil {
		return
	}
	_, _ = fmt.Fprintf(c, "%x", h.Sum(nil))
}

func TestHTTPServerLearnsThatTheClientHasGivenUp(t *testing.T) {
	overEachProtocol(t, func(t *testing.T, n network, p protocol) {
		gone, seen := make(chan error, 1), make(chan struct{})
		s := serve(t, n, p, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/wait" {
				return
			}
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			gone <- r.Context().Err()
			// crypto/tls sends close_notify before it closes: the end of this response
			// could arrive before the client's own close.
			<-seen
		})
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/wait", nil)
		require.NoError(t, err)
		resp, err := s.client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		cancel()
		_, err = io.ReadAll(resp.Body)
		close(seen)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, receive(t, gone), context.Canceled)
		resp, err = s.client.Get(s.url)
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
	})
}
