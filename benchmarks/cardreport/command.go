package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// program is the path of one that "make card-report" builds.
func (o *options) program(name string) string { return filepath.Join(o.bin, name) }

// call is a program to be run to its end.
type call struct {
	program string
	args    []string
	dir     string
	env     []string // besides this process's
	most    time.Duration
}

// run runs a program, and kills it and all that it has started after its time. It returns the
// standard output, also with an error, which ends with what was last on standard error.
func (c call) run(ctx context.Context) (string, error) {
	if _, err := exec.LookPath(c.program); err != nil {
		return "", notBuilt(c.program)
	}
	ctx, cancel := context.WithTimeout(ctx, c.most)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program, c.args...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = c.dir, append(os.Environ(), c.env...), &out, io.Writer(&errs)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second // for output of what has left the group
	err := cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("it has not ended after %v", c.most)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", filepath.Base(c.program), err, lastLine(errs.String()))
	}
	return out.String(), err
}

// notBuilt says why a program is not there: those in C are built if that is possible.
func notBuilt(program string) error {
	return fmt.Errorf("%s is not there: make card-report builds it; programs in C need a compiler and libibverbs-dev", filepath.Base(program))
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
