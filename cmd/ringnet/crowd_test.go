//go:build !race

package main

// Under the race detector the processes would take ten times the memory that is measured.

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/limits"
)

// startEcho starts an echo server in a process of its own, until the end of the test.
func startEcho(t *testing.T) (address string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asEcho+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	_, err = fmt.Fscanln(out, &address)
	require.NoError(t, err)
	return address
}

func TestProxyOfTenThousandConnections(t *testing.T) {
	requireShm(t)
	const connections = 10_000
	limits.NeedDescriptors(t, connections+1000)
	const limit = uint64(640 << 20) // bytes in each proxy, at most
	client, server := startPair(t, "shm", "tcp://"+startEcho(t))
	conns := make([]net.Conn, connections)
	t.Cleanup(func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	ask := func(i int) error {
		var message, answer [1000]byte
		binary.BigEndian.PutUint64(message[:], uint64(i))
		if _, err := conns[i].Write(message[:]); err != nil {
			return err
		}
		if _, err := io.ReadFull(conns[i], answer[:]); err != nil {
			return err
		}
		if answer != message {
			return fmt.Errorf("connection %d was answered to something else", i)
		}
		return nil
	}
	address := client.address(0)
	forAll(t, connections, func(i int) (err error) {
		if conns[i], err = net.DialTimeout("tcp", address, patience); err != nil {
			return err
		}
		return ask(i)
	})
	forAll(t, connections, ask)
	for name, p := range map[string]*service{"client's": client, "server's": server} {
		of, err := procfs.NewProc(p.cmd.Process.Pid)
		require.NoError(t, err)
		status, err := of.NewStatus()
		require.NoError(t, err)
		peak := status.VmHWM
		t.Logf("%s proxy: at most %d MiB", name, peak>>20)
		require.Less(t, peak, limit, name)
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
}

// forAll calls f for 0 to n-1, some at a time.
func forAll(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	numbers, failed := make(chan int), make(chan error, n)
	var workers sync.WaitGroup
	for range 64 {
		workers.Go(func() {
			for i := range numbers {
				if err := f(i); err != nil {
					failed <- err
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	workers.Wait()
	close(failed)
	require.NoError(t, <-failed, "and %d more", len(failed))
}
