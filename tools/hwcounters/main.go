// Hwcounters runs a command and prints by how much the hardware counters of
// this machine's RDMA devices rose meanwhile, on standard error.
//
//	hwcounters COMMAND ARG…
//
// Its exit status is the command's, or 1 if the command succeeded but a message
// found no receive posted (RNR), which ringnet promises never to happen. It
// fails, too, where there is no device that counts.
package main

import (
	"errors"
	"log"
	"os"
	"os/exec"

	"github.com/ringnet/ringnet/internal/hwcounters"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("hwcounters: ")
	if len(os.Args) < 2 {
		log.Fatal("usage: hwcounters COMMAND ARG…")
	}
	before := hwcounters.Read()
	if len(before) == 0 {
		log.Fatal("there is no RDMA device with counters; go run ./tools/softroce runs this where there is one")
	}
	status, err := run(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	for _, rise := range hwcounters.Read().Since(before) {
		log.Printf("%s rose by %d", rise.Counter, rise.By)
		if rise.NoReceive() && status == 0 {
			status = 1
		}
	}
	if status != 0 {
		os.Exit(status)
	}
	log.Print("every message found a receive posted")
}

// run runs the command and returns its exit status.
func run(args []string) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if !exit.Exited() {
			return 0, err
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
