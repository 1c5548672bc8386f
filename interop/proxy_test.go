package interop

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy serves an httputil.ReverseProxy to the site.
func proxy(t *testing.T, n network, to *site) *site {
	t.Helper()
	target, err := url.Parse(to.url)
	require.NoError(t, err)
	p := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: to.client.Transport,
	}
	return serve(t, n, protocols[0], p.ServeHTTP, nil)
}

// An upgraded connection is two streams that end one after the other. The backend answers
// only after the end of what the client sends, so client, proxy and backend must pass that
// on as a half-close. The answer must come back over the half that is still open.
func TestReverseProxyPassesOnTheHalvesOfAnUpgradedConnection(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		front := proxy(t, n, serve(t, n, protocols[0], sum, nil))
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
