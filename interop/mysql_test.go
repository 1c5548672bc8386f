package interop

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// startMySQL stands in for a MySQL server, of which Debian has no package. It answers every
// command with success, and returns connections that have had an answer to their first query, to be
// closed, as MySQL does with those that were idle for wait_timeout.
func startMySQL(t *testing.T, l net.Listener) (conns <-chan net.Conn) {
	answered := make(chan net.Conn, 100)
	serveOn(t, l, func(c net.Conn) { answerMySQL(c, answered) })
	return answered
}

func answerMySQL(c net.Conn, conns chan<- net.Conn) {
	const protocol, plugins, status = 0x1 | 0x200 | 0x8000, 0x8, 0x2
	greeting := []byte("\x0astand-in\x00" + "\x01\x00\x00\x00" + "12345678\x00")
	greeting = binary.LittleEndian.AppendUint16(greeting, protocol)
	greeting = binary.LittleEndian.AppendUint16(append(greeting, 45), status)
	greeting = append(binary.LittleEndian.AppendUint16(greeting, plugins), 21)
	greeting = append(append(greeting, make([]byte, 10)...), "123456789012\x00mysql_native_password\x00"...)
	if writeMySQL(c, 0, greeting) != nil {
		return
	}
	ok := []byte{0, 0, 0, status, 0, 0, 0}
	for answered := 0; ; answered++ { // first what follows the greeting, and then commands
		number, command, err := readMySQL(c)
		if quit := answered > 0 && err == nil && command[0] == 0x01; err != nil || quit {
			return
		}
		if writeMySQL(c, number+1, ok) != nil {
			return
		}
		if answered == 1 {
			conns <- c
		}
	}
}

func readMySQL(c net.Conn) (number byte, payload []byte, err error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(c, head); err != nil {
		return 0, nil, err
	}
	payload = make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
	_, err = io.ReadFull(c, payload)
	if len(payload) == 0 {
		err = errors.Join(err, errors.New("an empty packet"))
	}
	return head[3], payload, err
}

func writeMySQL(c net.Conn, number byte, payload []byte) error {
	_, err := c.Write(append([]byte{byte(len(payload)), 0, 0, number}, payload...))
	return err
}

// The driver asks an idle connection's socket whether the server has closed it, before it sends
// a query, for which it could not know afterwards whether the server has run it.
func TestMySQLDriverPassesOverConnectionsThatTheServerHasClosed(t *testing.T) {
	test := func(t *testing.T, l net.Listener, dialer *watchedDialer, carrier string) {
		conns := startMySQL(t, l)
		db := mysqlPool(t, dialer, l.Addr().String())
		const rounds = 10
		for range rounds {
			for range 3 {
				_, err := db.ExecContext(t.Context(), "insert")
				require.NoError(t, err)
			}
			require.NoError(t, receive(t, conns).Close())
		}
		require.Len(t, dialer.networks, rounds, "a connection for each that the server has closed, and used again in between")
		dialer.requireAll(t, carrier)
	}
	overEachNetwork(t, func(t *testing.T, n network) {
		test(t, n.listen(t), &watchedDialer{Dialer: n.dialer()}, n.carrier(t))
	})
	t.Run("auto over tcp", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		test(t, l, &watchedDialer{Dialer: &ringnet.Dialer{ForTCP: "auto"}}, "tcp")
	})
}
