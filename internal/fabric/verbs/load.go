//go:build linux && cgo

package verbs

// Opening the libraries and the event channel, once, and saying what is
// missing where that fails.

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ringnet/ringnet/internal/fabric"
)

const (
	libibverbs = "libibverbs.so.1"
	librdmacm  = "librdmacm.so.1"
)

// shared is the connection manager of this process, once it could be opened.
var shared struct {
	sync.Mutex
	manager *manager
}

// rdma implements [fabric.Fabric]: the manager of this process, used in one way
// of several.
type rdma struct {
	*manager
	config Config
}

// New returns a fabric. The first opens the libraries. Where there is no RDMA
// the error wraps errors.ErrUnsupported and says what is missing; the next call
// tries again.
func New(c Config) (fabric.Fabric, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.manager == nil {
		m, err := open(libibverbs, librdmacm)
		if err != nil {
			return nil, err
		}
		shared.manager = m
	}
	return rdma{shared.manager, c}, nil
}

// Fabric returns the fabric with the default configuration.
func Fabric() (fabric.Fabric, error) { return New(Config{}) }

func open(ibverbs, rdmacm string) (*manager, error) {
	relaxed, err := relaxedOrdering()
	if err != nil {
		return nil, err
	}
	if err := checkSystem("/sys/class/infiniband", "/dev/infiniband"); err != nil {
		return nil, err
	}
	if err := load(ibverbs, rdmacm); err != nil {
		return nil, err
	}
	var channel *C.struct_rn_rdma_event_channel
	if rc := C.rn_create_event_channel(&channel); rc != 0 {
		return nil, unavailable(syscallError("rdma_create_event_channel", rc), "see whether ibv_devices lists a device")
	}
	return newManager(channel, relaxed)
}

// relaxedOrdering says whether a device may write to memory in another order
// than the bytes arrived in, up to the completion. It is what some hosts reach
// their bandwidth by (AMD's, and Intel's of late) and harm to others, so it is
// for whoever runs the host to switch off, by an environment variable.
func relaxedOrdering() (bool, error) {
	const name = "RINGNET_RELAXED_ORDERING"
	switch value := os.Getenv(name); value {
	case "", "on":
		return true, nil
	case "off":
		return false, nil
	default:
		return false, fmt.Errorf("the environment variable %s is %q: want on, off, or none at all, which is on", name, value)
	}
}

// checkSystem finds what the libraries would only report as a bare ENODEV, or
// on stderr: no device, no driver, no permission.
func checkSystem(sysfs, dev string) error {
	if devices, err := os.ReadDir(sysfs); err != nil || len(devices) == 0 {
		return unavailable(syscall.ENODEV,
			"there is no RDMA device; soft-RoCE makes one of a network interface: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE")
	}
	cm := filepath.Join(dev, "rdma_cm")
	if err := checkDevice(cm, "modprobe rdma_ucm"); err != nil {
		return err
	}
	uverbs, _ := filepath.Glob(filepath.Join(dev, "uverbs*"))
	if len(uverbs) == 0 {
		return unavailable(&fs.PathError{Op: "open", Path: filepath.Join(dev, "uverbs*"), Err: syscall.ENOENT}, "modprobe ib_uverbs")
	}
	var err error
	for _, path := range uverbs {
		if err = checkDevice(path, "modprobe ib_uverbs"); err == nil {
			return nil
		}
	}
	return err
}

func checkDevice(path, module string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, fs.ErrPermission):
		return unavailable(err, "this user may not use RDMA: give read and write permission on /dev/infiniband/* (udev rule of rdma-core), or pass these devices to the container")
	case errors.Is(err, fs.ErrNotExist):
		return unavailable(err, module+", or pass /dev/infiniband/* to the container")
	}
	return unavailable(err, "see whether ibv_devices lists a device")
}

// load looks up the functions of rdma-core.
func load(ibverbs, rdmacm string) error {
	v, c := C.CString(ibverbs), C.CString(rdmacm)
	defer C.free(unsafe.Pointer(v))
	defer C.free(unsafe.Pointer(c))
	var opened C.int
	if why := C.rn_load(v, c, &opened); why != nil {
		advice := "install rdma-core (Debian, Ubuntu: apt-get install libibverbs1 librdmacm1 ibverbs-providers)"
		if opened != 0 {
			advice = "rdma-core is older than v23, the first to have rdma_establish: install a newer one"
		}
		return unavailable(fmt.Errorf("%w: %s", fabric.ErrNoLibrary, C.GoString(why)), advice)
	}
	return nil
}

func unavailable(cause error, advice string) error {
	return fmt.Errorf("RDMA: %w: %w: %s", errors.ErrUnsupported, cause, advice)
}
