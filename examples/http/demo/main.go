// Demo runs the server and the client of this folder as two processes, and
// compares every byte. With auto, which needs no hardware, it does so over TCP, too, and
// says which was faster. With rdma it shows by the device's own counters that the bytes
// went through the device.
//
//	make demo
//	make demo-rdma
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("demo: ")
	bin := flag.String("bin", "", "folder with the programs server and client")
	dir := flag.String("dir", "", "folder to serve; arguments are the subfolders of it to fetch")
	network := flag.String("network", "auto", "auto or rdma")
	rounds := flag.Int("rounds", 9, "how often to fetch all files, over auto and over tcp")
	flag.Parse()
	var err error
	switch d := (demo{*bin, *dir, flag.Args()}); *network {
	case "auto":
		err = d.auto(*rounds)
	case "rdma":
		err = d.rdma(os.Getenv("SOFTROCE_DEVICE"), os.Getenv("SOFTROCE_ADDR"))
	default:
		err = fmt.Errorf("-network is %s: want auto or rdma", *network)
	}
	if err != nil {
		log.Fatal(err)
	}
}

type demo struct {
	bin, dir   string
	subfolders []string
}

// auto fetches over auto and over TCP in turn, so that other load of the machine affects
// both alike, and compares the medians.
func (d demo) auto(rounds int) error {
	networks := []string{"auto", "tcp"}
	servers := make([]string, len(networks))
	times := make([][]time.Duration, len(networks))
	for i, network := range networks {
		addr, stop, err := d.serve(network, "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer stop()
		servers[i] = addr
	}
	var auto result
	for round := range rounds {
		for turn := range networks {
			i := (round + turn) % len(networks) // each is first as often as the other
			r, err := d.fetch(networks[i], servers[i], round == 0)
			if err != nil {
				return err
			}
			if networks[i] == "auto" {
				auto = r
			}
			times[i] = append(times[i], r.took)
		}
		fmt.Printf("demo: round %d: %s %v, tcp %v\n", round+1, auto.network,
			times[0][round].Round(time.Millisecond), times[1][round].Round(time.Millisecond))
	}
	mine, tcp := median(times[0]), median(times[1])
	fmt.Printf("demo: medians: %s %v, tcp %v\n", auto.network, mine.Round(time.Millisecond), tcp.Round(time.Millisecond))
	comparison := fmt.Sprintf("%.2f times as fast as TCP", float64(tcp)/float64(mine))
	if mine > tcp {
		comparison = fmt.Sprintf("%.2f times as slow as TCP", float64(mine)/float64(tcp))
	}
	fmt.Printf("demo: %s, over %s; %s\n", auto.what, auto.network, comparison)
	return nil
}

// rdma fetches once, over the device.
func (d demo) rdma(device, addr string) error {
	if device == "" || addr == "" {
		return fmt.Errorf("want the RDMA device and its address in SOFTROCE_DEVICE and SOFTROCE_ADDR")
	}
	server, stop, err := d.serve("rdma", net.JoinHostPort(addr, "0"))
	if err != nil {
		return err
	}
	defer stop()
	before := counters(device)
	r, err := d.fetch("rdma", server, true)
	if err != nil {
		return err
	}
	after := counters(device)
	for _, name := range names(after) {
		if rise := after[name] - before[name]; rise != 0 {
			fmt.Printf("demo: %s %s rose by %d\n", device, name, rise)
		}
	}
	fmt.Printf("demo: %s, over %s (%s)\n", r.what, r.network, device)
	return nil
}

// serve starts a server and returns the address it listens on.
func (d demo) serve(network, addr string) (listening string, stop func(), err error) {
	server := exec.Command(filepath.Join(d.bin, "server"), "-network", network, "-addr", addr, "-dir", d.dir)
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

// fetch runs the client, and shows its progress if asked to.
func (d demo) fetch(network, server string, show bool) (result, error) {
	args := append([]string{"-network", network, "-server", server, "-dir", d.dir}, d.subfolders...)
	client := exec.Command(filepath.Join(d.bin, "client"), args...)
	client.Stderr = os.Stderr
	out, err := client.StdoutPipe()
	if err != nil {
		return result{}, err
	}
	if err := client.Start(); err != nil {
		return result{}, err
	}
	var last string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if show && last != "" {
			fmt.Println("demo:", last)
		}
		last = lines.Text()
	}
	if err := client.Wait(); err != nil {
		return result{}, fmt.Errorf("the client on %s failed: %w", network, err)
	}
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

// counters reads the counters of the device's ports.
func counters(device string) map[string]int64 {
	counts := make(map[string]int64)
	paths, _ := filepath.Glob(filepath.Join("/sys/class/infiniband", device, "ports/*/*counters/*"))
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // some counters of some devices cannot be read
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			counts[filepath.Base(path)] += n
		}
	}
	return counts
}

func names(counts map[string]int64) []string {
	var names []string
	for name := range counts {
		if name != "lifespan" { // a setting, not a count
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
