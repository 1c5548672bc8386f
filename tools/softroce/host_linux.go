package main

// This file runs the command on a host that has a device.

import (
	"cmp"
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
func runHere(ctx context.Context, opts options, found devices) (int, error) {
	args := opts.commands[0]
	path, status, err := lookPath(args[0])
	if err != nil {
		return status, err
	}
	env := append(environment(), found.env()...)
	env = append(env, "SOFTROCE_NODE=0")
	if opts.scratch != "" {
		env = append(env, "SOFTROCE_SCRATCH="+opts.scratch)
	}
	raiseLimits()
	return supervise(ctx, func(ctx context.Context, signals <-chan unix.Signal) (int, error) {
		cmd := exec.CommandContext(ctx, path)
		cmd.Err = nil // it may be relative, where PATH is
		cmd.Args, cmd.Env, cmd.Stdout, cmd.Stderr = args, env, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
		cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
		if err := cmd.Start(); err != nil {
			return exitNotExecutable, cmp.Or(context.Cause(ctx), err)
		}
		go func() {
			for s := range signals {
				_ = unix.Kill(-cmd.Process.Pid, s)
			}
		}()
		_ = cmd.Wait() // its state says how it has ended
		return exitStatus(cmd.ProcessState.Sys().(syscall.WaitStatus)), context.Cause(ctx)
	})
}

// environment is this process's, without what another run, whose command this is, has added to it.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SOFTROCE_") })
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
