package main

// This file decides whether QEMU runs guests under KVM or emulates their processors, and goes over to that.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Accelerators of QEMU.
const (
	accelKVM = "kvm"
	accelTCG = "tcg" // emulation
)

var (
	kvmDevice = "/dev/kvm"

	// kvmSilence is how long a guest that boots under KVM may write nothing to its console before it is taken
	// for one that hangs. Stock kernels do so in their first lines under the KVM of some machines that
	// are themselves virtual. An emulated guest, which is ten times as slow or more, writes its first line after
	// 14 seconds when three processes want each processor, and is never again silent for as long.
	kvmSilence = 10 * time.Second
)

// accel is how all guests of a run run.
type accel struct {
	name   string // accelKVM or accelTCG
	orTCG  bool   // if a guest does not come up under KVM, all are emulated
	failed bool   // that has happened, and is not yet in memo
	memo   string // file with the id of the host's boot if guests do not come up under its KVM
}

// chooseAccel returns how guests are to run: as wanted, or, if that is empty, under KVM if the user may use it and
// no run since the host's boot has gone over to emulation. The folder cache has the memo of that.
func chooseAccel(wanted, cache string) accel {
	a := accel{name: wanted, memo: filepath.Join(cache, "without-kvm")}
	if wanted != "" {
		return a
	}
	a.name = accelTCG
	if noted, err := os.ReadFile(a.memo); err == nil && string(noted) == hostBoot() {
		return a
	}
	if device, err := os.OpenFile(kvmDevice, os.O_RDWR, 0); err == nil {
		device.Close()
		a.name, a.orTCG = accelKVM, true
	}
	return a
}

// booted is called when all guests have come up: if they are emulated because they did not under KVM, it spares
// later runs on this boot of the host the try. (If the memo cannot be written, they try.)
func (a *accel) booted() {
	if a.failed {
		_ = os.WriteFile(a.memo, []byte(hostBoot()), 0o644)
	}
	a.orTCG, a.failed = false, false
}

// hostBoot is the id of the host's boot.
func hostBoot() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// arguments are QEMU's for the accelerator, and of the kernel for its console, which under KVM shows that the boot
// goes on, and when emulated would take time.
func (a accel) arguments() (qemu []string, console string) {
	if a.name == accelKVM {
		return []string{"-accel", "kvm", "-cpu", "host"}, ""
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max"}, "quiet "
}

// console is how much a guest has written to its console, and since when it has written no more.
type console struct {
	size  int64
	since time.Time
}

// silence returns how long nothing has been written, when there are size bytes now.
func (c *console) silence(size int64, now time.Time) time.Duration {
	if size != c.size {
		c.size, c.since = size, now
	}
	return now.Sub(c.since)
}

// orEmulate returns err, which keeps a node from being ready. But if KVM may be the reason, it starts all nodes again
// without: nodes of unequal speed are no pair to test with.
func (c *cluster) orEmulate(err error) error {
	if err == nil || !c.accel.orTCG {
		return err
	}
	progress("guests are emulated until this host boots again, because under KVM: %s (SOFTROCE_ACCEL=kvm insists, and shows more)", briefly(err))
	c.accel.name, c.accel.orTCG, c.accel.failed = accelTCG, false, true
	for _, n := range c.nodes {
		if n.vm != nil {
			n.unplug()
		}
	}
	return c.boot()
}

// hung returns an error if the console of a node that is booting has been silent for too long.
func (c *cluster) hung(now time.Time) error {
	for _, n := range c.nodes {
		if n.ready {
			continue
		}
		info, err := n.log.Stat()
		if err == nil && n.console.silence(info.Size(), now) >= kvmSilence {
			return n.explain(fmt.Errorf("the guest of node %d has written nothing to its console for %v", n.config.Node, kvmSilence))
		}
	}
	return nil
}
