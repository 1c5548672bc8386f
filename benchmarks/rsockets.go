package main

/*
#cgo LDFLAGS: -ldl
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

// rsockets is librdmacm's rsockets (rsocket(7)). The library is opened at the first use.
static struct {
	int (*socket)(int, int, int);
	int (*bind)(int, const struct sockaddr *, socklen_t);
	int (*listen)(int, int);
	int (*accept)(int, struct sockaddr *, socklen_t *);
	int (*connect)(int, const struct sockaddr *, socklen_t);
	int (*getsockname)(int, struct sockaddr *, socklen_t *);
	int (*setsockopt)(int, int, int, const void *, socklen_t);
	int (*shutdown)(int, int);
	int (*close)(int);
	ssize_t (*recv)(int, void *, size_t, int);
	ssize_t (*send)(int, const void *, size_t, int);
} rs;

static int rs_load(void) {
	void *lib = dlopen("librdmacm.so.1", RTLD_NOW);
	if (!lib)
		return -1;
	struct { void **to; const char *name; } all[] = {
		{(void **)&rs.socket, "rsocket"}, {(void **)&rs.bind, "rbind"}, {(void **)&rs.listen, "rlisten"},
		{(void **)&rs.accept, "raccept"}, {(void **)&rs.connect, "rconnect"},
		{(void **)&rs.getsockname, "rgetsockname"}, {(void **)&rs.setsockopt, "rsetsockopt"},
		{(void **)&rs.shutdown, "rshutdown"}, {(void **)&rs.close, "rclose"},
		{(void **)&rs.recv, "rrecv"}, {(void **)&rs.send, "rsend"},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!(*all[i].to = dlsym(lib, all[i].name)))
			return -1;
	return 0;
}

static struct sockaddr_in rs_address(uint32_t ip, uint16_t port) {
	struct sockaddr_in a;
	memset(&a, 0, sizeof a);
	a.sin_family = AF_INET;
	a.sin_addr.s_addr = ip;
	a.sin_port = htons(port);
	return a;
}

static int rs_new(void) {
	int fd = rs.socket(AF_INET, SOCK_STREAM, 0), one = 1;
	if (fd >= 0)
		rs.setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

static int rs_fail(int fd) {
	int err = errno;
	rs.close(fd);
	errno = err;
	return -1;
}

static int rs_dial(uint32_t ip, uint16_t port) {
	struct sockaddr_in a = rs_address(ip, port);
	int fd = rs_new();
	if (fd >= 0 && rs.connect(fd, (struct sockaddr *)&a, sizeof a))
		return rs_fail(fd);
	return fd;
}

static int rs_listen(uint32_t ip, uint16_t *port) {
	struct sockaddr_in a = rs_address(ip, 0);
	socklen_t len = sizeof a;
	int fd = rs_new();
	if (fd < 0)
		return fd;
	if (rs.bind(fd, (struct sockaddr *)&a, len) || rs.listen(fd, 1024) || rs.getsockname(fd, (struct sockaddr *)&a, &len))
		return rs_fail(fd);
	*port = ntohs(a.sin_port);
	return fd;
}

static int rs_accept(int fd) { return rs.accept(fd, NULL, NULL); }
static ssize_t rs_recv(int fd, void *p, size_t n) { return rs.recv(fd, p, n, 0); }
static ssize_t rs_send(int fd, const void *p, size_t n) { return rs.send(fd, p, n, 0); }
static int rs_shutdown(int fd) { return rs.shutdown(fd, SHUT_RDWR); }
static int rs_close(int fd) { return rs.close(fd); }
*/
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

var loadRsockets = sync.OnceValue(func() error {
	if C.rs_load() != 0 {
		return errors.New("librdmacm.so.1 is not installed (Debian: librdmacm1)")
	}
	return nil
})

// rsocket is a connection of rsockets whose calls block a thread each, as they
// would in C. It has no deadlines, for which net/http and gRPC ask.
type rsocket struct {
	fd            C.int
	local, remote net.Addr
	calls         sync.RWMutex // shared by calls under way, which Close waits for
	closed        atomic.Bool
}

func rsocketAddress(address string) (ip C.uint32_t, port C.uint16_t, err error) {
	if err := loadRsockets(); err != nil {
		return 0, 0, err
	}
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return 0, 0, err
	}
	if !a.Addr().Unmap().Is4() {
		return 0, 0, fmt.Errorf("%v is not an IPv4 address", a)
	}
	four := a.Addr().Unmap().As4()
	return C.uint32_t(binary.NativeEndian.Uint32(four[:])), C.uint16_t(a.Port()), nil
}

func dialRsocket(_ context.Context, address string) (net.Conn, error) {
	ip, port, err := rsocketAddress(address)
	if err != nil {
		return nil, err
	}
	fd, err := C.rs_dial(ip, port)
	if fd < 0 {
		return nil, os.NewSyscallError("rconnect", err)
	}
	return &rsocket{fd: fd, local: rsocketAddr(""), remote: rsocketAddr(address)}, nil
}

type rsocketAddr string

func (rsocketAddr) Network() string  { return "rsocket" }
func (a rsocketAddr) String() string { return string(a) }

func (c *rsocket) Read(p []byte) (int, error) {
	n, err := c.call("rrecv", func() (C.ssize_t, error) {
		n, err := C.rs_recv(c.fd, unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)))
		return n, err
	})
	if n == 0 && err == nil && len(p) > 0 {
		return 0, io.EOF
	}
	return n, err
}

func (c *rsocket) Write(p []byte) (total int, err error) {
	for total < len(p) && err == nil {
		var n int
		n, err = c.call("rsend", func() (C.ssize_t, error) {
			n, err := C.rs_send(c.fd, unsafe.Pointer(&p[total]), C.size_t(len(p)-total))
			return n, err
		})
		total += n
	}
	return total, err
}

func (c *rsocket) call(name string, do func() (C.ssize_t, error)) (int, error) {
	c.calls.RLock()
	defer c.calls.RUnlock()
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	n, err := do()
	if n < 0 {
		return 0, os.NewSyscallError(name, err)
	}
	return int(n), nil
}

func (c *rsocket) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	C.rs_shutdown(c.fd) // ends the calls under way
	c.calls.Lock()
	defer c.calls.Unlock()
	if n, err := C.rs_close(c.fd); n < 0 {
		return os.NewSyscallError("rclose", err)
	}
	return nil
}

func (c *rsocket) LocalAddr() net.Addr              { return c.local }
func (c *rsocket) RemoteAddr() net.Addr             { return c.remote }
func (c *rsocket) SetDeadline(time.Time) error      { return nil }
func (c *rsocket) SetReadDeadline(time.Time) error  { return nil }
func (c *rsocket) SetWriteDeadline(time.Time) error { return nil }

type rsocketListener struct {
	fd     C.int
	addr   rsocketAddr
	closed atomic.Bool
}

func listenRsocket(host string) (net.Listener, error) {
	ip, _, err := rsocketAddress(net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	var port C.uint16_t
	fd, err := C.rs_listen(ip, &port)
	if fd < 0 {
		return nil, os.NewSyscallError("rlisten", err)
	}
	return &rsocketListener{fd: fd, addr: rsocketAddr(net.JoinHostPort(host, fmt.Sprint(port)))}, nil
}

func (l *rsocketListener) Accept() (net.Conn, error) {
	fd, err := C.rs_accept(l.fd)
	if fd < 0 {
		return nil, os.NewSyscallError("raccept", err)
	}
	c := &rsocket{fd: fd, local: l.addr, remote: rsocketAddr("")}
	if l.closed.Load() {
		c.Close()
		C.rs_close(l.fd)
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close ends Accept by connecting to it: an accept that waits cannot be interrupted.
func (l *rsocketListener) Close() error {
	if l.closed.Swap(true) {
		return net.ErrClosed
	}
	last, err := dialRsocket(context.Background(), l.Addr().String())
	if err != nil {
		return err
	}
	return last.Close()
}

func (l *rsocketListener) Addr() net.Addr { return l.addr }
