package metrics

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// devices are the metrics of the RDMA devices of this host.
var devices list

var (
	devicesRead = devices.gauge("devices_read", "1 if the RDMA devices of the host could be read, even if there is none; else 0.")

	portUp       = devices.gauge("device_port_up", "1 if the port of an RDMA device is ACTIVE, else 0.", "device", "port")
	portRate     = devices.gauge("device_port_rate_bytes_per_second", "Rate of the port of an RDMA device, in each direction.", "device", "port")
	portReceived = devices.counter("device_port_received_bytes", "Bytes that the port of an RDMA device has received for all programs, where it counts them.", "device", "port")
	portSent     = devices.counter("device_port_sent_bytes", "Bytes that the port of an RDMA device has sent for all programs, where it counts them.", "device", "port")
	portEvents   = devices.counter("device_port_events", "What else the port of an RDMA device has counted, by the name that the kernel gives the counter.", "device", "port", "counter")
)

// sysfs is where the kernel shows RDMA devices: on Linux alone. Other hosts have none.
const sysfs = "/sys/class/infiniband"

func readDevices(emit emitter) {
	devices, err := os.ReadDir(sysfs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		emit(devicesRead, 0)
		return
	}
	emit(devicesRead, 1)
	for _, device := range devices {
		ports, _ := os.ReadDir(filepath.Join(sysfs, device.Name(), "ports"))
		for _, port := range ports {
			emitPort(emit, sysfs, device.Name(), port.Name())
		}
	}
}

// emitPort emits the metrics of a port.
func emitPort(emit emitter, sysfs, device, port string) {
	dir := filepath.Join(sysfs, device, "ports", port)
	up := 0.0
	if strings.HasSuffix(text(dir, "state"), ": ACTIVE") {
		up = 1
	}
	emit(portUp, up, device, port)
	if rate, ok := parseRate(text(dir, "rate")); ok {
		emit(portRate, rate, device, port)
	}
	counters := readCounters(filepath.Join(dir, "counters")) // of the InfiniBand standard
	for name, d := range map[string]*metric{"port_rcv_data": portReceived, "port_xmit_data": portSent} {
		if n, ok := counters[name]; ok {
			emit(d, 4*float64(n), device, port) // it counts words of 4 bytes
			delete(counters, name)
		}
	}
	maps.Copy(counters, readCounters(filepath.Join(dir, "hw_counters"))) // of the driver
	delete(counters, "lifespan")                                         // a setting: how old a count may be
	for name, n := range counters {
		emit(portEvents, float64(n), device, port, name)
	}
}

// readCounters reads the counters in a folder. It leaves out those that cannot be
// read, as some of virtual devices cannot.
func readCounters(dir string) map[string]uint64 {
	counters := make(map[string]uint64)
	files, _ := os.ReadDir(dir)
	for _, file := range files {
		if n, err := strconv.ParseUint(text(dir, file.Name()), 10, 64); err == nil {
			counters[file.Name()] = n
		}
	}
	return counters
}

// parseRate returns the bytes per second of a rate like "100 Gb/sec (4X EDR)".
func parseRate(s string) (float64, bool) {
	number, _, ok := strings.Cut(s, " Gb/sec")
	gigabits, err := strconv.ParseFloat(number, 64)
	return gigabits * 1e9 / 8, ok && err == nil
}

// text returns what is in a file of one line, or "" if it cannot be read.
func text(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
