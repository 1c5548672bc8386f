//go:build unix

package interop

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/programs"
)

// For each library that dials by itself, these tests run the line of docs/migrate.md, with the
// library's own client and a server that knows nothing of ringnet.

// watchedDialer is a ringnet.Dialer that records the networks of its connections.
type watchedDialer struct {
	*ringnet.Dialer

	mu       sync.Mutex // guards networks
	networks []string
}

func (d *watchedDialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d *watchedDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.networks = append(d.networks, carrierOf(c))
	return c, nil
}

// requireAll requires that there have been connections, all over one network.
func (d *watchedDialer) requireAll(t *testing.T, network string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	require.NotEmpty(t, d.networks, "the library has not used the dialer")
	for _, n := range d.networks {
		require.Equal(t, network, n)
	}
}

// libraries are those of docs/migrate.md: each has a server at an address of package net, and a
// client that uses a dialer.
var libraries = []struct {
	name  string
	serve func(t *testing.T) (network, address string)
	talk  func(t *testing.T, dialer *watchedDialer, addr string)
}{
	{"net/http", serveHTTP, talkHTTP},
	{"gRPC", serveGRPC, talkGRPC},
	{"go-redis", serveRedis, talkRedis},
	{"pgx", servePostgres, talkPostgres},
	{"NATS", serveNATS, talkNATS},
	{"mongo", serveMongo, talkMongo},
	{"mysql", serveMySQL, talkMySQL},
	{"ssh", serveSSH, talkSSH},
	{"coder/websocket", serveWebSocket, talkCoderWebSocket},
	{"gorilla/websocket", serveWebSocket, talkGorillaWebSocket},
	{"connect", serveConnect, talkConnect},
	{"minio-go", serveObjects, talkMinio},
}

func TestLibrariesDialRingnet(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		for _, library := range libraries {
			t.Run(library.name, func(t *testing.T) {
				network, address := library.serve(t)
				l := n.listen(t)
				forward(t, l, network, address)
				dialer, carrier := &watchedDialer{Dialer: n.dialer()}, n.carrier(t)
				if carrier != "tcp" {
					dialer.Require = []string{carrier} // or TCP wins where shm is slow to answer
				}
				library.talk(t, dialer, l.Addr().String())
				dialer.requireAll(t, carrier)
			})
		}
	})
}

// A server without ringnet is reached over TCP.
func TestLibrariesDialTCPWhereThereIsNothingBetter(t *testing.T) {
	for _, library := range libraries {
		t.Run(library.name, func(t *testing.T) {
			network, address := library.serve(t)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			forward(t, l, network, address)
			dialer := &watchedDialer{Dialer: &ringnet.Dialer{ForTCP: "auto"}}
			library.talk(t, dialer, l.Addr().String())
			dialer.requireAll(t, "tcp")
		})
	}
}

func serveHTTP(t *testing.T) (network, address string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
	t.Cleanup(s.Close)
	return "tcp", s.Listener.Addr().String()
}

func talkHTTP(t *testing.T, dialer *watchedDialer, addr string) {
	transport := &http.Transport{DialContext: dialer.DialContext}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://" + addr + "/index")
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "/index", string(body))
}

func serveGRPC(t *testing.T) (network, address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(s, interop.NewTestServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, receive(t, served))
	})
	return "tcp", l.Addr().String()
}

func talkGRPC(t *testing.T, dialer *watchedDialer, addr string) {
	cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }))
	require.NoError(t, err)
	defer cc.Close()
	_, err = testgrpc.NewTestServiceClient(cc).EmptyCall(t.Context(), new(testgrpc.Empty))
	require.NoError(t, err)
}

func serveRedis(t *testing.T) (network, address string) {
	socket := filepath.Join(t.TempDir(), "redis")
	programs.StartRedis(t, "--port", "0", "--unixsocket", socket)
	return "unix", socket
}

func talkRedis(t *testing.T, dialer *watchedDialer, addr string) {
	options := &redis.Options{Addr: addr, Dialer: dialer.DialContext}
	options.ReadTimeout = hang.After
	c := redis.NewClient(options)
	defer c.Close()
	const commands = 10_000
	replies, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for range commands {
			p.Incr(t.Context(), "key")
		}
		return nil
	})
	require.NoError(t, err)
	require.Len(t, replies, commands)
	for i, r := range replies {
		require.EqualValues(t, i+1, r.(*redis.IntCmd).Val())
	}
}

func servePostgres(t *testing.T) (network, address string) {
	return "unix", programs.StartPostgres(t, "listen_addresses=") + "/.s.PGSQL.5432"
}

func talkPostgres(t *testing.T, dialer *watchedDialer, addr string) {
	config, err := pgxpool.ParseConfig("postgres://bench@" + addr + "/postgres?sslmode=disable")
	require.NoError(t, err)
	config.ConnConfig.DialFunc = dialer.DialContext
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	var value string
	require.NoError(t, pool.QueryRow(t.Context(), "select repeat($1, 100000)", "ring").Scan(&value))
	require.Len(t, value, 400_000)
}

func serveNATS(t *testing.T) (network, address string) {
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, NoLog: true, NoSigs: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(hang.After))
	return "tcp", s.Addr().String()
}

func talkNATS(t *testing.T, dialer *watchedDialer, addr string) {
	nc, err := nats.Connect(addr, nats.SetCustomDialer(dialer))
	require.NoError(t, err)
	defer nc.Close()
	_, err = nc.Subscribe("echo", func(m *nats.Msg) { _ = m.Respond(m.Data) })
	require.NoError(t, err)
	sent := randomBytes(100_000)
	answer, err := nc.Request("echo", sent, hang.After)
	require.NoError(t, err)
	requireSame(t, sent, answer.Data)
}

// serveMongo stands in for a MongoDB server, of which Debian has no package. It answers the
// greeting, and every other command with success.
func serveMongo(t *testing.T) (network, address string) {
	return serveEach(t, func(c net.Conn) {
		for answerMongo(c) == nil {
		}
	})
}

// answerMongo reads a message (OP_MSG) and answers it.
func answerMongo(c net.Conn) error {
	const header, message = 16, 2013 // length, request, response to, and the operation code OP_MSG
	head := make([]byte, header)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	length, request := binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[4:])
	if length < header || binary.LittleEndian.Uint32(head[12:]) != message {
		return errors.New("not a message")
	}
	if _, err := io.CopyN(io.Discard, c, int64(length)-header); err != nil {
		return err
	}
	body, err := bson.Marshal(bson.D{
		{Key: "ok", Value: 1}, {Key: "isWritablePrimary", Value: true}, {Key: "helloOk", Value: true},
		{Key: "minWireVersion", Value: int32(0)}, {Key: "maxWireVersion", Value: int32(21)},
		{Key: "maxBsonObjectSize", Value: int32(1 << 20)}, {Key: "maxMessageSizeBytes", Value: int32(1 << 20)}, {Key: "maxWriteBatchSize", Value: int32(1)},
	})
	if err != nil {
		return err
	}
	answer := make([]byte, header+5, header+5+len(body)) // with the flags, and the kind of what follows, a document
	binary.LittleEndian.PutUint32(answer, uint32(cap(answer)))
	binary.LittleEndian.PutUint32(answer[8:], request)
	binary.LittleEndian.PutUint32(answer[12:], message)
	_, err = c.Write(append(answer, body...))
	return err
}

func talkMongo(t *testing.T, dialer *watchedDialer, addr string) {
	options := options.Client().SetDialer(dialer).ApplyURI("mongodb://" + addr).SetDirect(true).
		SetServerAPIOptions(options.ServerAPI(options.ServerAPIVersion1)) // else the client begins with an old protocol
	client, err := mongo.Connect(options)
	require.NoError(t, err)
	require.NoError(t, client.Ping(t.Context(), nil))
	require.NoError(t, client.Disconnect(t.Context()))
}

func serveMySQL(t *testing.T) (network, address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	startMySQL(t, l)
	return "tcp", l.Addr().String()
}

func talkMySQL(t *testing.T, dialer *watchedDialer, addr string) {
	db := mysqlPool(t, dialer, addr)
	require.NoError(t, db.PingContext(t.Context()))
	_, err := db.ExecContext(t.Context(), "insert")
	require.NoError(t, err)
}

// mysqlPool is a pool whose connections the dialer makes.
func mysqlPool(t *testing.T, dialer *watchedDialer, addr string) *sql.DB {
	config := mysql.NewConfig()
	config.Addr, config.User, config.Net = addr, "bench", "tcp"
	config.DialFunc = dialer.DialContext
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
