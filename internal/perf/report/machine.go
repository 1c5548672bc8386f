package report

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Machine is what a process runs on. Fields that are not known are empty.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Memory int    `json:"memory"` // bytes
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Device string `json:"device,omitempty"` // RDMA
}

// ThisMachine describes the machine of this process: fully on Linux, hardly elsewhere.
func ThisMachine() Machine {
	m := Machine{
		CPU:    "unknown CPU",
		CPUs:   runtime.NumCPU(),
		Memory: ProcNumber("/proc/meminfo", "MemTotal:") << 10,
		Kernel: runtime.GOOS,
		Go:     runtime.Version(),
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = "Linux " + strings.TrimSpace(string(b))
	}
	return m
}

func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d CPUs, %s, %s, %s", m.CPU, m.CPUs, Size(m.Memory), m.Kernel, m.Go)
	if m.Device != "" {
		s += ", RDMA device " + m.Device
	}
	return s
}

// load is the load average of the last minute, or 0 if it is not known.
func load() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	f, _ := strconv.ParseFloat(first, 64)
	return f
}

// ProcNumber is the number behind a word in a file of /proc, or 0.
func ProcNumber(file, word string) int {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 1 && fields[0] == word {
			n, _ := strconv.Atoi(fields[1])
			return n
		}
	}
	return 0
}
