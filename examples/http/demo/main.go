// Demo runs the server and the client of this folder as two processes, over
// RDMA, and shows by the device's own counters that the bytes went through it.
// It wants to run where there is an RDMA device: "make demo" sees to that.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

func main() {
	log.SetFlags(0)
	bin := flag.String("bin", "", "folder with the programs server and client")
	dir := flag.String("dir", filepath.Join(runtime.GOROOT(), "src"), "folder to serve")
	device := flag.String("device", os.Getenv("SOFTROCE_DEVICE"), "RDMA device")
	addr := flag.String("addr", os.Getenv("SOFTROCE_ADDR"), "an address of its interface")
	flag.Parse()
	if *device == "" || *addr == "" {
		log.Fatal("demo: want -device and -addr, or SOFTROCE_DEVICE and SOFTROCE_ADDR in the environment")
	}
	if err := demo(*bin, *dir, *device, *addr, flag.Args()); err != nil {
		log.Fatal("demo: ", err)
	}
}

func demo(bin, dir, device, addr string, subfolders []string) error {
	server := exec.Command(filepath.Join(bin, "server"), "-addr", net.JoinHostPort(addr, "0"), "-dir", dir)
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the server does not listen: %w", err)
	}
	listening := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	fmt.Printf("demo: serving %s on %s\n", dir, listening)

	before := counters(device)
	client := exec.Command(filepath.Join(bin, "client"),
		append([]string{"-server", listening, "-dir", dir}, subfolders...)...)
	client.Stderr = os.Stderr
	result, err := run(client)
	if err != nil {
		return fmt.Errorf("the client failed: %w", err)
	}
	after := counters(device)
	for _, name := range names(after) {
		if rise := after[name] - before[name]; rise != 0 {
			fmt.Printf("demo: %s %s rose by %d\n", device, name, rise)
		}
	}
	fmt.Printf("demo: %s, over rdma (%s)\n", result, device)
	return nil
}

// run runs a command, passes its output on as it comes, and returns the last
// line instead of passing it on.
func run(cmd *exec.Cmd) (last string, err error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	lines := bufio.NewScanner(out)
	for first := true; lines.Scan(); first = false {
		if !first {
			fmt.Println("demo:", last)
		}
		last = lines.Text()
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		return "", err
	}
	return last, cmd.Wait()
}

// counters reads what the device's ports have counted.
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
