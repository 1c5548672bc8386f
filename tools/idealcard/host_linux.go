package main

// This file runs the program that gives the command's processes a fabric.

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// startHost starts that program, which listens at a socket, and returns the socket's path, a
// connection for requests, and a function that ends it. Users other than this one may use the socket, but not what lies
// beside it.
func startHost(dir, libraries string, env []string) (path string, requests net.Conn, stop func(), err error) {
	path = filepath.Join(dir, "fabric")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return "", nil, nil, fmt.Errorf("%w: a socket's path has at most 107 bytes, and lies in TMPDIR", err)
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(path, 0o777), os.Chmod(dir, 0o711)); err != nil {
		return "", nil, nil, err
	}
	socket, err := l.File()
	if err != nil {
		return "", nil, nil, err
	}
	defer socket.Close()
	cmd := exec.Command(filepath.Join(libraries, "host"))
	cmd.Env = append(env, "IDEAL_HOST=1")
	cmd.Stderr = os.Stderr
	requests, theirs, err := cardSocket()
	if err != nil {
		return "", nil, nil, err
	}
	defer theirs.Close()
	cmd.ExtraFiles = []*os.File{socket, theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true} // a terminal's signals are for the command
	if err := cmd.Start(); err != nil {
		return "", nil, nil, fmt.Errorf("the fabric's host: %w: remove %s, which is then made again", err, libraries)
	}
	return path, requests, func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, nil
}
