package report

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
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

	Ringnet string `json:"ringnet,omitempty"` // the version that the program was built of
}

// ThisMachine describes the machine of this process: fully on Linux, hardly elsewhere.
func ThisMachine() Machine {
	kernel := runtime.GOOS
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = "Linux " + strings.TrimSpace(string(b))
	}
	m := Machine{
		CPU:    cmp.Or(procField("/proc/cpuinfo", "model name"), "unknown CPU"),
		CPUs:   runtime.NumCPU(),
		Memory: ProcBytes("/proc/meminfo", "MemTotal"),
		Kernel: kernel,
		Go:     runtime.Version(),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		m.Ringnet = info.Main.Version
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
func load() (average float64) {
	b, _ := os.ReadFile("/proc/loadavg")
	_, _ = fmt.Sscan(string(b), &average)
	return average
}

// procField is what a file of /proc says of a word, or "".
func procField(file, word string) string {
	b, _ := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == word {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// ProcBytes is the size that a file of /proc says of a word, or 0.
func ProcBytes(file, word string) (size int) {
	_, _ = fmt.Sscan(procField(file, word), &size)
	return size << 10
}
