package interop

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/ringnet/ringnet"
)

// fasthttp knows a client by its address, if that is a *net.TCPAddr: it counts the connections of
// clients that it does not know for none of them.
func TestFasthttpKnowsItsClientsOnAuto(t *testing.T) {
	if err := noShm(t); err != nil {
		t.Skip(err)
	}
	const most = 2
	l := network{"auto", "127.0.0.1"}.listen(t)
	server := &fasthttp.Server{
		Handler:       func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString(ctx.RemoteIP().String()) },
		MaxConnsPerIP: most,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	ask := func(network string, dial func(network, address string) (net.Conn, error)) (status int, body string) {
		c, err := dial(network, l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: test\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		t.Log(carrierOf(c), "carries it") // shm, unless the machine is so busy that TCP does
		return resp.StatusCode, string(answer)
	}
	for range most {
		status, ip := ask("auto", ringnet.Dial)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "127.0.0.1", ip)
	}
	status, _ := ask("auto", ringnet.Dial)
	require.Equal(t, http.StatusTooManyRequests, status)
	status, _ = ask("tcp", net.Dial)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.NoError(t, l.Close())
	require.NoError(t, receive(t, served))
}
