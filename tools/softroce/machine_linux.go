package main

// This file knows how machines differ: by architecture and by distribution.

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
)

// machine is what a guest of one architecture needs from QEMU.
type machine struct {
	qemu    string   // program
	pkg     string   // package that has the program
	args    []string // arguments that every guest gets
	console string   // name of the first serial port
	kernel  string   // Debian's name for the architecture's kernel package
}

var machines = map[string]machine{
	"amd64": {qemu: "qemu-system-x86_64", pkg: "qemu-system-x86", console: "ttyS0", kernel: "linux-image-amd64"},
	"arm64": {qemu: "qemu-system-aarch64", pkg: "qemu-system-arm", args: []string{"-machine", "virt"}, console: "ttyAMA0", kernel: "linux-image-arm64"},
}

// distribution is the part of os-release(5) that matters here.
type distribution struct {
	name   string // and version
	ubuntu bool   // Ubuntu or made from it
}

func thisMachine() (machine, error) {
	m, ok := machines[runtime.GOARCH]
	if !ok {
		return m, fmt.Errorf("there is no guest for %s: only for amd64 and arm64", runtime.GOARCH)
	}
	return m, nil
}

func thisDistribution() distribution {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return distribution{}
	}
	return parseOSRelease(string(text))
}

var (
	nameLines   = regexp.MustCompile(`(?m)^(?:ID|VERSION_ID)=.*$`)
	ubuntuLines = regexp.MustCompile(`(?m)^(?:ID|ID_LIKE)=.*\bubuntu\b`)
)

func parseOSRelease(text string) distribution {
	return distribution{strings.Join(nameLines.FindAllString(text, -1), " "), ubuntuLines.MatchString(text)}
}

// kernelPackage returns the package that depends on the newest kernel with the
// RDMA modules; the flavours for clouds lack them.
func kernelPackage(m machine, d distribution) string {
	if d.ubuntu {
		return "linux-image-generic"
	}
	return m.kernel
}
