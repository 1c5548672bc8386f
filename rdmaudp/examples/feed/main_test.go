package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a receiver gets and what it reports as missing is together all that was published.
func TestFeedReportsGaps(t *testing.T) {
	host := os.Getenv("SOFTROCE_ADDR")
	if host == "" {
		t.Skip("no RDMA device: SOFTROCE_ADDR is not set; bin/softroce runs this where there is one")
	}
	const group, packets, skip = "239.0.0.71:7001", 1000, 100
	var outs []*bufio.Reader
	for range 2 {
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(receive(w, interfaceOf(t, host), group)) }()
		out := bufio.NewReader(r)
		listening, err := out.ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, listening, group)
		outs = append(outs, out)
	}
	said := make(chan string)
	for _, out := range outs {
		go func() {
			all, err := io.ReadAll(out)
			said <- fmt.Sprintln(string(all), err)
		}()
	}
	require.NoError(t, send(io.Discard, host+":0", group, packets, 0, skip))
	for range outs {
		var gaps, missing, received, missingInAll, gapsInAll int
		for line := range strings.Lines(<-said) {
			var from, to int
			if _, err := fmt.Sscanf(line, "gap: %d to %d\n", &from, &to); err == nil {
				gaps, missing = gaps+1, missing+to-from+1
			}
			_, _ = fmt.Sscanf(line, "%d updates received, %d missing in %d gaps", &received, &missingInAll, &gapsInAll)
		}
		require.GreaterOrEqual(t, missing, packets/skip*perPacket)
		require.Positive(t, received)
		require.Equal(t, packets*perPacket, received+missing)
		require.Equal(t, []int{missing, gaps}, []int{missingInAll, gapsInAll})
	}
}

// interfaceOf returns the name of the interface that has an address of this host.
func interfaceOf(t *testing.T, host string) string {
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifi := range all {
		addrs, err := ifi.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			if a.(*net.IPNet).IP.String() == host {
				return ifi.Name
			}
		}
	}
	require.FailNow(t, "no interface has "+host)
	return ""
}
