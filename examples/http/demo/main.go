// Demo runs the server and the client of this folder as two processes, and
// compares every byte: over auto, which needs no hardware, and over TCP, and says which was
// faster; or over rdma alone.
//
//	make demo
//	make demo-rdma
package main

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("demo: ")
	bin := flag.String("bin", "", "folder with the programs server and client")
	dir := flag.String("dir", "", "folder to serve; arguments are the subfolders of it to fetch")
	network := flag.String("network", "auto", "auto, which is compared with tcp, or rdma")
	host := flag.String("host", cmp.Or(os.Getenv("SOFTROCE_ADDR"), "127.0.0.1"), "address to serve at; default $SOFTROCE_ADDR, or 127.0.0.1")
	rounds := flag.Int("rounds", 9, "how often to fetch all files")
	flag.Parse()
	networks := []string{*network}
	if *network == "auto" {
		networks = append(networks, "tcp")
	}
	if err := (demo{*bin, *dir, flag.Args()}).run(networks, *host, *rounds); err != nil {
		log.Fatal(err)
	}
}

type demo struct {
	bin, dir   string
	subfolders []string
}

// run fetches over one network after the other, so that other load of the machine affects all
// alike, and compares the medians.
func (d demo) run(networks []string, host string, rounds int) error {
	servers := make([]string, len(networks))
	times := make([][]time.Duration, len(networks))
	for i, network := range networks {
		addr, stop, err := d.serve(network, host)
		if err != nil {
			return err
		}
		defer stop()
		servers[i] = addr
	}
	var first result
	for round := range rounds {
		for turn := range networks {
			i := (round + turn) % len(networks) // each is first as often as the other
			r, err := d.fetch(networks[i], servers[i])
			if err != nil {
				return err
			}
			if i == 0 {
				first = r
			}
			times[i] = append(times[i], r.took)
			fmt.Printf("demo: round %d: %s %v\n", round+1, r.network, r.took.Round(time.Millisecond))
		}
	}
	fmt.Printf("demo: %s, over %s%s\n", first.what, first.network, comparison(times))
	return nil
}

func comparison(times [][]time.Duration) string {
	if len(times) < 2 {
		return ""
	}
	mine, tcp := median(times[0]), median(times[1])
	if mine > tcp {
		return fmt.Sprintf("; %.2f times as slow as TCP", float64(mine)/float64(tcp))
	}
	return fmt.Sprintf("; %.2f times as fast as TCP", float64(tcp)/float64(mine))
}

// serve starts a server and returns the address it listens on.
func (d demo) serve(network, host string) (listening string, stop func(), err error) {
	server := exec.Command(filepath.Join(d.bin, "server"), "-network", network, "-addr", net.JoinHostPort(host, "0"), "-dir", d.dir)
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := server.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("the server on %s does not listen: %w", network, err)
	}
	listening = strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	fmt.Printf("demo: serving %s on %s %s\n", d.dir, network, listening)
	return listening, stop, nil
}

// result is the client's last line.
type result struct {
	what    string // "N files, B bytes, all identical"
	network string
	took    time.Duration
}

func (d demo) fetch(network, server string) (result, error) {
	args := append([]string{"-network", network, "-server", server, "-dir", d.dir}, d.subfolders...)
	client := exec.Command(filepath.Join(d.bin, "client"), args...)
	client.Stderr = os.Stderr
	out, err := client.Output()
	if err != nil {
		return result{}, fmt.Errorf("the client on %s failed: %w", network, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	last := lines[len(lines)-1]
	what, rest, _ := strings.Cut(last, ", over ")
	carrier, took, _ := strings.Cut(rest, ", in ")
	t, err := time.ParseDuration(took)
	if err != nil {
		return result{}, fmt.Errorf("the client on %s ended with %q", network, last)
	}
	return result{what, carrier, t}, nil
}

func median(times []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(times))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
