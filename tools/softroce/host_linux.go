package main

// This file runs the command on the host, with a device that is there or that
// it makes.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// hostDeviceName is the device made on a host, which may have an rxe0 of its
// own.
const hostDeviceName = "rxe_softroce"

// Several runs share the device that one of them makes, and the last of them removes it.
// A run holds makeLock while it makes or removes the device, and a shared lock on useLock
// while it uses the device.
const (
	makeLock = "/run/softroce-make.lock"
	useLock  = "/run/softroce-use.lock"
)

// hostDevice returns a device of the host, and a function to call when it is
// no longer needed; or nil when a guest has to provide it.
func hostDevice(ctx context.Context) (*device, func(), error) {
	if os.Geteuid() != 0 {
		return findDevice(sysInfiniband, interfaceAddrs), func() {}, nil
	}
	unlock, err := lock(ctx, makeLock)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	d := findDevice(sysInfiniband, interfaceAddrs)
	if d == nil && canLoad("rdma_rxe") {
		// The packages cannot be installed: if the command needs one, it fails and says so.
		if _, err := exec.LookPath("apt-get"); err == nil {
			if err := install(ctx, verbsPackages); err != nil {
				return nil, nil, err
			}
		}
		// A run that was killed may have left it.
		if err := removeDevice(hostDeviceName); err != nil {
			return nil, nil, err
		}
		if d, err = makeDevice(rxe, hostDeviceName, rdmaInterface, 0, 0); err == nil {
			err = addOther(d)
		}
		if err != nil {
			progress("no soft-RoCE device here, so a guest it is: %v", err)
			return nil, nil, removeDevice(hostDeviceName)
		}
	}
	if d == nil || d.name != hostDeviceName {
		return d, func() {}, nil
	}
	use, err := os.OpenFile(useLock, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.Flock(int(use.Fd()), unix.LOCK_SH); err != nil {
		return nil, nil, fmt.Errorf("lock %s: %w", useLock, err)
	}
	return d, func() { leaveDevice(use) }, nil
}

// leaveDevice ends this run's use of the device that was made here, and removes the device
// if no other run uses it.
func leaveDevice(use *os.File) {
	defer use.Close()
	unlock, err := lock(context.Background(), makeLock)
	if err != nil {
		progress("%s stays: %v", hostDeviceName, err)
		return
	}
	defer unlock()
	if unix.Flock(int(use.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		if err := removeDevice(hostDeviceName); err != nil {
			progress("removing %s: %v", hostDeviceName, err)
		}
	}
}

// canLoad loads a module of the kernel, with those that give programs access
// to it, and tells whether that worked.
func canLoad(module string) bool {
	modprobe := sbin("modprobe")
	// Some kernels have these checksums built in, others fail without them.
	_ = exec.Command(modprobe, "crc32_generic").Run()
	return exec.Command(modprobe, "-a", module, "rdma_ucm", "ib_uverbs", "dummy").Run() == nil
}

// runHere runs the command of opts as a child and returns its exit status.
func runHere(ctx context.Context, opts options, d *device) (int, error) {
	args := opts.commands[0]
	path, status, err := lookPath(args[0])
	if err != nil {
		return status, err
	}
	// This run may be the command of another one, whose variables do not hold here.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, envPrefix) })
	env = append(env, d.env(envPrefix)...)
	env = append(env, "SOFTROCE_NODE=0")
	if opts.scratch != "" {
		env = append(env, "SOFTROCE_SCRATCH="+opts.scratch)
	}
	raiseLimits()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	return supervise(ctx, func(ctx context.Context, signals <-chan unix.Signal) (int, error) {
		p, err := os.StartProcess(path, args, &os.ProcAttr{
			Env:   env,
			Files: []*os.File{null, os.Stdout, os.Stderr},
			Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
		})
		if err != nil {
			return exitNotExecutable, err
		}
		ended := make(chan int, 1)
		go func() {
			state, err := p.Wait()
			if err != nil {
				ended <- exitFailed
				return
			}
			ended <- exitStatus(state.Sys().(syscall.WaitStatus))
		}()
		for {
			select {
			case status := <-ended:
				return status, nil
			case s := <-signals:
				_ = unix.Kill(-p.Pid, s)
			case <-ctx.Done():
				_ = unix.Kill(-p.Pid, unix.SIGKILL)
				<-ended
				return 0, context.Cause(ctx)
			}
		}
	})
}

// lookPath finds a program; when it fails, status is what a shell would exit
// with.
func lookPath(name string) (path string, status int, err error) {
	path, err = exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, 0, nil
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return "", exitNotFound, err
	default:
		return "", exitNotExecutable, err
	}
}

// exitStatus is the exit status of a shell for a command that ended with ws.
func exitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return exitSignal + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// raiseLimits removes the limit of locked memory, which verbs lock, for this process and
// the command. Only root can; for others it does nothing.
func raiseLimits() {
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited)
}
