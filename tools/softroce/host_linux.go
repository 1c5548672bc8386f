package main

// This file runs the command on a host that has a device.

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

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
