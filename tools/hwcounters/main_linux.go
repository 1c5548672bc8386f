// Hwcounters runs a command and prints by how much the hardware counters of
// this machine's RDMA devices rose meanwhile, on standard error.
//
//	hwcounters COMMAND ARG…
//
// Its exit status is the command's, or 1 if the command succeeded but a message
// found no receive posted (RNR), which ringnet promises never to happen. What the
// devices count is the witness that ringnet's own counters cannot be. Hwcounters
// fails, too, where there is no device that counts. It is for Linux alone.
package main

import (
	"errors"
	"log"
	"os"
	"os/exec"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("hwcounters: ")
	if len(os.Args) < 2 {
		log.Fatal("usage: hwcounters COMMAND ARG…")
	}
	before, err := readCounts()
	if err == nil && len(before) == 0 {
		err = errors.New("there is no RDMA device with counters")
	}
	if err != nil {
		log.Fatalf("%v; tools/softroce runs this where there is one", err)
	}
	status, err := run(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	after, err := readCounts()
	if err != nil {
		log.Fatal(err)
	}
	for _, rise := range after.since(before) {
		log.Printf("%s rose by %d", rise.counter, rise.by)
		if rise.noReceive() && status == 0 {
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
