package main

// This file installs, by apt, the packages that a host or a guest needs.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// verbsPackages are the programs and libraries that commands expect where
// there is an RDMA device. The utilities bring libibverbs and librdmacm with
// them, whose packages have different names in different releases.
var verbsPackages = []string{
	"iproute2", "kmod",
	"ibverbs-providers", "ibverbs-utils", "rdmacm-utils", "perftest",
	"libibverbs-dev", "librdmacm-dev",
}

// guestPackages are the packages that are needed to make a guest.
func guestPackages(m machine) []string {
	return append([]string{m.pkg, "busybox-static"}, verbsPackages...)
}

// install installs those of the packages that are not installed.
func install(ctx context.Context, packages []string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("there is no RDMA device here, and making one takes Debian's or Ubuntu's packages: apt-get not found")
	}
	missing := missingPackages(ctx, packages)
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("packages are missing; this command installs them:\n\tsudo apt-get update && sudo apt-get install --no-install-recommends %s", strings.Join(missing, " "))
	}
	progress("installing %s", strings.Join(missing, " "))
	args := append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)
	return withLists(ctx, func() error {
		_, err := apt(ctx, "", "apt-get", args...)
		return err
	})
}

// missingPackages returns those of packages that dpkg does not know as
// installed.
func missingPackages(ctx context.Context, packages []string) []string {
	args := append([]string{"-W", "-f", "${Package} ${db:Status-Status}\n"}, packages...)
	// Its exit status is not 0 if it does not know one of them.
	out, _ := exec.CommandContext(ctx, "dpkg-query", args...).Output()
	lines := strings.Split(string(out), "\n")
	return slices.DeleteFunc(slices.Clone(packages), func(p string) bool { return slices.Contains(lines, p+" installed") })
}

// withLists calls try, which needs the lists of available packages, and again after an update when it
// fails: there may be no lists, and those that are too old name packages that are gone. Only root can
// update.
func withLists(ctx context.Context, try func() error) error {
	err := try()
	if err == nil || ctx.Err() != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w\nif apt's lists are missing or old, this helps: sudo apt-get update", err)
	}
	if _, err := apt(ctx, "", "apt-get", "update", "-q"); err != nil {
		return err
	}
	return try()
}

// apt runs one of apt's programs in dir and returns its output. It waits for
// others who are installing something, and never asks anything.
func apt(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	// When time is over, apt gets a chance to leave the packages in order.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return output(cmd)
}

// output runs cmd and returns its standard output. The error has its standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// progress tells the user about something that takes time and is done once.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "softroce: "+format+"\n", args...)
}
