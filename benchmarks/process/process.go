// Package process runs other programs, for benchmarks and package cardreport.
package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// A Call is a program to be run to its end.
type Call struct {
	Program string
	Args    []string
	Dir     string
	Env     []string      // besides this process's
	Most    time.Duration // until it is ended, and all that it has started
}

// Run returns the standard output, also with an error, which ends with what was last on standard
// error.
func (c Call) Run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Most)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Program, c.Args...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = c.Dir, append(os.Environ(), c.Env...), &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second // then it is killed
	err := cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("it has not ended after %v", c.Most)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", filepath.Base(c.Program), err, LastLine(errs.String()))
	}
	return out.String(), err
}

// Measure runs a build of benchmarks, and reads the results that it has left, also with an error.
func (c Call) Measure(ctx context.Context, results any) error {
	dir, err := os.MkdirTemp("", "ringnet-benchmarks-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c.Args = append(slices.Clip(c.Args), "-out", dir)
	_, err = c.Run(ctx)
	return errors.Join(err, report.ReadJSON(filepath.Join(dir, "results.json"), results))
}

// LastLine is the last line of a text.
func LastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// A Child is a process that has called Ready. It ends with this one.
type Child struct {
	Address string // of where it listens
	Process *os.Process
	cmd     *exec.Cmd
}

// Start returns when the child is ready.
func Start(program string, args ...string) (*Child, error) {
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s does not listen", filepath.Base(program)), cmd.Wait())
	}
	return &Child{strings.TrimSpace(line), cmd.Process, cmd}, nil
}

// Ready tells the process that has started this one where it listens. When that process ends, this
// one does.
func Ready(address string) {
	fmt.Println(address)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
}

// Kill returns when the child is gone.
func (c *Child) Kill() {
	_ = c.Process.Kill()
	_ = c.cmd.Wait() // which says that it was killed
}
