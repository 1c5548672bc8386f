package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
)

const (
	afSMC   = 43 // AF_SMC of linux/socket.h
	smcTCP4 = 0  // SMCPROTO_SMC of linux/net/smc.h: addresses are IPv4
)

// smcSocket makes a socket of the kernel's SMC. Package net takes it for one of TCP:
// addresses, options and calls are the same.
func smcSocket() (*os.File, error) {
	fd, err := syscall.Socket(afSMC, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, smcTCP4)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return os.NewFile(uintptr(fd), "smc"), nil
}

func smcAddr(a netip.AddrPort) (*syscall.SockaddrInet4, error) {
	if !a.Addr().Unmap().Is4() {
		return nil, fmt.Errorf("%v is not an IPv4 address", a)
	}
	return &syscall.SockaddrInet4{Addr: a.Addr().Unmap().As4(), Port: int(a.Port())}, nil
}

func listenSMC(host string) (net.Listener, error) {
	f, err := smcSocket()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil, err
	}
	at, err := smcAddr(netip.AddrPortFrom(ip, 0))
	if err != nil {
		return nil, err
	}
	if err := syscall.Bind(int(f.Fd()), at); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := syscall.Listen(int(f.Fd()), syscall.SOMAXCONN); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(f)
}

// dialSMC connects. It fails if the kernel carries the connection by TCP.
func dialSMC(_ context.Context, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	at, err := smcAddr(to)
	if err != nil {
		return nil, err
	}
	f, err := smcSocket()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := syscall.Connect(int(f.Fd()), at); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if err := smcCarries(st.Ino); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}
