package main

// This file is the process between the launcher and the command: its keeper. It passes on signals,
// and when the command or the launcher has ended, however that did, it ends all that has come of the
// command.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// ordersFD is where a keeper reads what to do: each byte is a signal for the command, or endAll. The end of
// the bytes without that is the launcher's: it was killed, and has left its folder.
const (
	ordersFD = 3
	endAll   = 0
)

// keeper is the launcher's side of a keeper.
type keeper struct {
	cmd    *exec.Cmd
	orders *os.File
	ended  chan struct{} // closed when no process is left
}

// signal has the command get a signal, unless it has ended.
func (k *keeper) signal(s os.Signal) { _, _ = k.orders.Write([]byte{byte(s.(syscall.Signal))}) }

// end begins to kill all processes: ended tells when they are gone.
func (k *keeper) end() {
	_, _ = k.orders.Write([]byte{endAll})
	_ = k.orders.Close()
}

// wait returns the exit status of the command.
func (k *keeper) wait() int {
	_ = k.cmd.Wait() // its state says how it has ended
	close(k.ended)
	return statusOf(k.cmd.ProcessState.Sys().(syscall.WaitStatus))
}

// keep runs the command, and returns its exit status when no process of it is left. If the launcher was
// killed, it also removes the launcher's folder.
func keep(path string, command []string, folder string) (int, error) {
	// Its children's children are this process's when their parents have ended.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("prctl: %w", err)
	}
	unix.CloseOnExec(ordersFD)
	// A terminal's signals are for the command. Signals that are ignored would be in the command, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	p, err := os.StartProcess(path, command, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return 0, err
	}
	var over, alone atomic.Bool
	go func() {
		alone.Store(!obey(p))
		over.Store(true)
		killChildren()
	}()
	for status := 0; ; {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			if alone.Load() {
				_ = os.RemoveAll(folder)
			}
			return status, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("wait: %w", err)
		case pid == p.Pid:
			status = statusOf(syscall.WaitStatus(ws))
			over.Store(true)
		}
		if over.Load() {
			killChildren()
		}
	}
}

// obey passes on signals until the launcher wants no more. It returns false if the launcher was killed.
func obey(command *os.Process) bool {
	orders := os.NewFile(ordersFD, "orders")
	for b := make([]byte, 1); ; {
		if n, _ := orders.Read(b); n == 0 {
			return false
		}
		if b[0] == endAll {
			return true
		}
		_ = command.Signal(syscall.Signal(b[0]))
	}
}

// killChildren kills the children of this process. What they leave are its children next.
func killChildren() {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, path := range lists {
		children, _ := os.ReadFile(path)
		for child := range strings.FieldsSeq(string(children)) {
			if pid, err := strconv.Atoi(child); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}
