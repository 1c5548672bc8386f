package cardreport

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/benchmarks/process"
)

// Host is the other end, as package net/rpc calls it: another host, or this one.
type Host struct {
	options
	process.Ends
	log      kernelLog // from when it began to listen
	reported bool      // Half has
	done     func()    // is called when the client has gone with that
}

// Gone is called when the client has gone.
func (h *Host) Gone() {
	h.Ends.Gone()
	if h.reported {
		h.done()
	}
}

// port is where the other end listens.
const port = "18599"

func (o *options) serve(measures func() process.Server) error {
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "card-report: waiting for make card-report CARD_REPORT=\"-connect ADDRESS\", with the address of this host's device\n")
	log := openKernelLog()
	reported, done := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		failed <- process.ServeAll(l, func() []process.Server {
			return []process.Server{measures(), &Host{options: *o, log: log, done: done}}
		})
	}()
	select {
	case <-reported.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// otherEnd is where the other host listens.
func (o *options) otherEnd() string { return net.JoinHostPort(o.connect, port) }

// reach connects to the other end, which may be within this process.
func (o *options) reach() (*rpc.Client, error) {
	if o.connect != "" {
		return rpc.Dial("tcp", o.otherEnd())
	}
	return process.Within(&Host{options: *o}), nil
}

// Device returns the name of the host's device.
func (h *Host) Device(_ struct{}, name *string) error {
	_, err := h.choose(context.Background())
	*name = h.device
	return err
}

// Counters returns what the host's device has counted.
func (h *Host) Counters(_ struct{}, all *map[string]uint64) error {
	_, err := h.choose(context.Background())
	*all = h.counters()
	return err
}

// Half is what a host that listens adds to the other's report.
type Half struct {
	Parts    []*Part
	Versions []string // to be kept
}

// Half writes the half of the report that is the host's, and returns it.
func (h *Host) Half(_ struct{}, half *Half) error {
	s, lacking, err := h.begin(context.Background(), 2, halfPrefix)
	if err == nil {
		err = s.run(lacking, []section{{"Doctor", false, s.doctor}, {"Host", false, s.host}, {"Manners", true, s.manners}, {"Kernel", false, h.log.tell}})
	}
	if err != nil {
		return err
	}
	half.Versions = s.report.scrub.keep
	if half.Parts, err = s.report.scrub.parts(s.report.Parts); err == nil {
		fmt.Fprintf(os.Stderr, "card-report: this host's half is %s in %s, and the other host's report has it, too\n", halfPrefix+markdown, h.out)
		h.reported = true
	}
	return err
}

// addOtherHalf adds the parts of the other host to the report.
func (s *session) addOtherHalf() error {
	var half Half
	if err := s.server.Call("Host.Half", struct{}{}, &half); err != nil {
		half.Parts = []*Part{{Title: "all", Problems: []string{err.Error()}}}
	}
	for _, p := range half.Parts {
		p.Title = "Other host: " + p.Title
	}
	s.report.Parts = append(s.report.Parts, half.Parts...)
	s.report.scrub.keep = append(s.report.scrub.keep, half.Versions...)
	return s.report.write()
}

// StartPeer starts an echo server of ringnet at an address of the host's device, and returns
// where it listens.
func (h *Host) StartPeer(host string, address *string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child, err := process.Start(self, Argument, "-peer", host)
	if err != nil {
		return err
	}
	*address = child.Address
	h.Put(child.Address, child.Kill)
	return nil
}

// bePeer is the echo server.
func bePeer(host string) error {
	l, err := ringnet.Listen("rdma", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	process.Ready(l.Addr().String())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c) // the client sees what fails
		}()
	}
}
