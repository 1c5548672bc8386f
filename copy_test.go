package ringnet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
)

// io.Copy from and to connections of auto.

// overEachCarrier runs a test with a function that connects over shm,
// and over TCP.
func overEachCarrier(t *testing.T, run func(carrier string, connect func() (client, server net.Conn))) {
	for _, carrier := range []string{"shm", "tcp"} {
		t.Setenv(auto.NetworksEnv, carrier)
		delayTCP(t, time.Hour)
		l, err := Listen("auto", "127.0.0.1:0")
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		require.NoError(t, err)
		defer l.Close()
		run(carrier, func() (client, server net.Conn) {
			client = dial(t, &Dialer{}, "auto", l.Addr().String())
			require.Equal(t, carrier, carrierOf(client))
			return client, accept(t, l)
		})
	}
}

// plainReader and plainWriter hide from io.Copy all methods but Read and Write.
type (
	plainReader struct{ io.Reader }
	plainWriter struct{ io.Writer }
)

func TestCopyFromAndToReadersWritersFilesAndConns(t *testing.T) {
	want := bytes.Repeat([]byte("all of it "), 20_000)
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, want, 0o600))
	overEachCarrier(t, func(carrier string, connect func() (client, server net.Conn)) {
		// sent returns a connection from which want can be read.
		sent := func(t *testing.T, connect func() (client, server net.Conn)) net.Conn {
			client, server := connect()
			go func() {
				_, _ = client.Write(want)
				_ = client.(interface{ CloseWrite() error }).CloseWrite()
			}()
			return server
		}
		file := func(t *testing.T) io.Reader {
			f, err := os.Open(path)
			require.NoError(t, err)
			t.Cleanup(func() { f.Close() })
			return f
		}
		tcp := func() (client, server net.Conn) { return tcpPair(t) }
		for name, from := range map[string]func(t *testing.T) io.Reader{
			"a reader":             func(*testing.T) io.Reader { return plainReader{bytes.NewReader(want)} },
			"a reader that writes": func(*testing.T) io.Reader { return bytes.NewReader(want) },
			"a file":               file,
			"a part of a file":     func(t *testing.T) io.Reader { return io.LimitReader(file(t), int64(len(want))) },
			"TCP":                  func(t *testing.T) io.Reader { return sent(t, tcp) },
			"auto":                 func(t *testing.T) io.Reader { return sent(t, connect) },
		} {
			t.Run(carrier+"/from "+name, func(t *testing.T) {
				client, server := connect()
				requireCopy(t, want, client, from(t), server)
			})
		}
		for name, to := range map[string]func() (client, server net.Conn){"TCP": tcp, "auto": connect} {
			t.Run(carrier+"/to "+name, func(t *testing.T) {
				client, server := to()
				requireCopy(t, want, client, sent(t, connect), server)
			})
		}
		for name, to := range map[string]func(b *bytes.Buffer) io.Writer{
			"a writer":            func(b *bytes.Buffer) io.Writer { return plainWriter{b} },
			"a writer that reads": func(b *bytes.Buffer) io.Writer { return b },
		} {
			t.Run(carrier+"/to "+name, func(t *testing.T) {
				var got bytes.Buffer
				n, err := io.Copy(to(&got), sent(t, connect))
				require.NoError(t, err)
				require.EqualValues(t, len(want), n)
				require.True(t, bytes.Equal(want, got.Bytes()))
			})
		}
		// Package os looks for a socket behind what it copies, and would move bytes that Stats does not see.
		t.Run(carrier+"/to a file", func(t *testing.T) {
			to, err := os.Create(filepath.Join(t.TempDir(), "to"))
			require.NoError(t, err)
			defer to.Close()
			from := sent(t, connect).(counting)
			_, err = io.CopyN(to, from, int64(len(want)))
			require.NoError(t, err)
			require.EqualValues(t, len(want), from.Stats().BytesReceived)
		})
	})
}

// requireCopy copies to the client, and requires that all of it comes to the server.
func requireCopy(t *testing.T, want []byte, client io.WriteCloser, from io.Reader, server io.Reader) {
	t.Helper()
	type result struct {
		n   int64
		err error
	}
	copied := make(chan result, 1)
	go func() {
		n, err := io.Copy(client, from)
		copied <- result{n, errors.Join(err, client.Close())}
	}()
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "%d bytes", len(got))
	require.Equal(t, result{n: int64(len(want))}, <-copied)
	if c, ok := client.(counting); ok {
		require.EqualValues(t, len(want), c.Stats().BytesWritten)
	}
}

// tcpPair is both ends of a connection of package net.
func tcpPair(t *testing.T) (client, server net.Conn) {
	l := listenTCP(t, "127.0.0.1:0")
	return dialTCP(t, nil, l.Addr().String()), accept(t, l)
}
