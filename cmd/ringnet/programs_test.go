//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/programs"
)

// Unmodified clients and servers work through two proxies with shm between them.

// output runs a program, requires that it ends without an error, and returns what it
// prints.
func output(t testing.TB, path string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// startRedis starts a redis-server, until the end of the test, and two proxies before it.
// It returns these, and the port that clients dial.
func startRedis(t *testing.T) (client, server *service, port string) {
	t.Helper()
	requireShm(t)
	dir := t.TempDir()
	programs.StartRedis(t, "--port", "0", "--unixsocket", dir+"/redis")
	client, server = startPair(t, "shm", "unix://"+dir+"/redis", "-v")
	return client, server, client.port()
}

func TestRedisBenchmarkThroughProxies(t *testing.T) {
	benchmark, cli := programs.Path(t, "redis-benchmark", "redis-tools"), programs.Path(t, "redis-cli", "redis-tools")
	_, _, port := startRedis(t)
	const requests = 1_600 // a multiple of the pipeline's length, so that the last one is full
	all := []string{"-t", "set,get,incr,lpush,lrange_100"}
	for name, args := range map[string][]string{
		"one after the other": append(all, "-c", "50"),
		"pipelined":           append(all, "-c", "8", "-P", "16"),
		"large":               {"-t", "incr,set,get", "-c", "8", "-d", "100000"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, "OK\n", output(t, cli, "-p", port, "flushall"))
			output(t, benchmark, append(args, "-p", port, "-q", "-n", strconv.Itoa(requests))...) // which ends at the first error
			require.Equal(t, fmt.Sprintf("%d\n", requests), output(t, cli, "-p", port, "get", "counter:__rand_int__"))
		})
	}
}

func TestPgbenchThroughProxies(t *testing.T) {
	requireShm(t)
	pgbench, psql := programs.Path(t, "pgbench", "postgresql"), programs.Path(t, "psql", "postgresql")
	dir := programs.StartPostgres(t, "listen_addresses=")
	client, _ := startPair(t, "shm", "unix://"+dir+"/.s.PGSQL.5432")

	at := []string{"-h", "127.0.0.1", "-p", client.port(), "-U", "bench"}
	output(t, pgbench, append(at, "-i", "-q", "postgres")...)
	const clients, each = 8, 100
	said := output(t, pgbench, append(at, "-c", strconv.Itoa(clients), "-t", strconv.Itoa(each), "-n", "postgres")...)
	require.Contains(t, said, fmt.Sprintf("number of transactions actually processed: %d/%d", clients*each, clients*each))
	require.Contains(t, said, "number of failed transactions: 0 (0.000%)")
	// Each transaction adds the same amount to an account, a teller, a branch and the
	// history.
	sums := output(t, psql, append(at, "-At", "-c",
		`select (select count(*) from pgbench_history),
			(select sum(delta) from pgbench_history) = (select sum(bbalance) from pgbench_branches),
			(select sum(tbalance) from pgbench_tellers) = (select sum(abalance) from pgbench_accounts)`, "postgres")...)
	require.Equal(t, fmt.Sprintf("%d|t|t\n", clients*each), sums)
}

func TestApacheBenchmarkThroughProxies(t *testing.T) {
	requireShm(t)
	ab := programs.Path(t, "ab", "apache2-utils")
	const length = 100_000
	page := make([]byte, length)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(page) }))
	defer site.Close()
	client, _ := startPair(t, "shm", "tcp://"+site.Listener.Addr().String())
	for name, flags := range map[string][]string{"a connection for each": nil, "kept alive": {"-k"}} {
		t.Run(name, func(t *testing.T) {
			const requests = 1000
			said := output(t, ab, append(flags, "-q", "-n", strconv.Itoa(requests), "-c", "16", "http://127.0.0.1:"+client.port()+"/")...)
			require.Regexp(t, fmt.Sprintf(`(?m)^Complete requests: +%d\n(.*\n)*Failed requests: +0\n(.*\n)*HTML transferred: +%d bytes$`, requests, requests*length), said)
		})
	}
}
