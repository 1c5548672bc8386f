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
}

// port is where the other end listens.
const port = "18599"

func (o *options) serve(measures func() process.Server) error {
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "card-report: waiting for make card-report CARD_REPORT=\"-connect ADDRESS\", with the address of this host's device\n")
	return process.ServeAll(l, func() []process.Server { return []process.Server{measures(), &Host{options: *o}} })
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

// Describe tells of the host.
func (h *Host) Describe(_ struct{}, p *Part) error {
	h.describe(context.Background(), p)
	return nil
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
