//go:build linux && cgo

package rdmacore

// Opening the libraries and the event channel, once, with errors that name what is
// missing.

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
	"github.com/ringnet/ringnet/internal/provider"
)

// sysInfiniband has a folder for each RDMA device of this host.
const sysInfiniband = "/sys/class/infiniband"

const (
	libibverbs = "libibverbs.so.1"
	librdmacm  = "librdmacm.so.1"
)

// shared is the connection manager of this process, once it could be opened.
var shared struct {
	sync.Mutex
	manager *manager
}

// CM is the connection manager as its user has configured it. All of a process have one event
// channel. Any goroutines may call its methods at the same time.
type CM struct {
	*manager
	config Config
}

// Open returns the connection manager. The first call opens the libraries. Without RDMA the error
// wraps errors.ErrUnsupported and names what is missing; the next call tries again.
func Open(c Config) (CM, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.manager == nil {
		m, err := open(libibverbs, librdmacm)
		if err != nil {
			return CM{}, err
		}
		shared.manager = m
	}
	return CM{shared.manager, c}, nil
}

func open(ibverbs, rdmacm string) (*manager, error) {
	relaxed, err := provider.RelaxedOrdering()
	if err != nil {
		return nil, err
	}
	inline, err := provider.InlineLimit()
	if err != nil {
		return nil, err
	}
	if err := checkLocks(); err != nil {
		return nil, err
	}
	if err := checkSystem(sysInfiniband, "/dev/infiniband"); err != nil {
		return nil, err
	}
	if err := load(ibverbs, rdmacm); err != nil {
		return nil, err
	}
	var channel *C.struct_rn_rdma_event_channel
	if rc := C.rn_create_event_channel(&channel); rc != 0 {
		return nil, unavailable(syscallError("rdma_create_event_channel", rc))
	}
	m, err := newManager(channel, relaxed)
	if err == nil {
		m.devices.inline, m.devices.library = inline, libraryVersion()
	}
	return m, err
}

// libraryVersion is that of the rdma-core that load has loaded.
func libraryVersion() provider.Version {
	path, _ := filepath.EvalSymlinks(C.GoString(C.rn_library()))
	return provider.VersionOf(path)
}

// checkLocks refuses a setting by which mlx5's library takes no locks: several goroutines
// post and poll at a time.
func checkLocks() error {
	if os.Getenv("MLX5_SINGLE_THREADED") == "1" {
		return unavailable(errors.New("MLX5_SINGLE_THREADED=1 takes away locks that are needed"))
	}
	return nil
}

// checkSystem finds errors that the libraries would report only as ENODEV, or on stderr:
// no device, no driver, no permission.
func checkSystem(sysfs, dev string) error {
	if devices, err := os.ReadDir(sysfs); err != nil || len(devices) == 0 {
		return unavailable(fmt.Errorf("there is no RDMA device: %w", syscall.ENODEV))
	}
	cm := filepath.Join(dev, "rdma_cm")
	if err := checkDevice(cm); err != nil {
		return err
	}
	uverbs, _ := filepath.Glob(filepath.Join(dev, "uverbs*"))
	if len(uverbs) == 0 {
		return unavailable(&fs.PathError{Op: "open", Path: filepath.Join(dev, "uverbs*"), Err: syscall.ENOENT})
	}
	var err error
	for _, path := range uverbs {
		if err = checkDevice(path); err == nil {
			return nil
		}
	}
	return err
}

func checkDevice(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, fs.ErrPermission):
		return unavailable(fmt.Errorf("this user may not use RDMA: %w", err))
	}
	return unavailable(err)
}

// load looks up the functions of rdma-core.
func load(ibverbs, rdmacm string) error {
	v, c := C.CString(ibverbs), C.CString(rdmacm)
	defer C.free(unsafe.Pointer(v))
	defer C.free(unsafe.Pointer(c))
	var opened C.int
	if why := C.rn_load(v, c, &opened); why != nil {
		what := "a library is missing"
		if opened != 0 {
			what = "this rdma-core is older than v23"
		}
		return unavailable(fmt.Errorf("%w: %s: %s", fabric.ErrNoLibrary, what, C.GoString(why)))
	}
	return nil
}

func unavailable(cause error) error {
	return fmt.Errorf("RDMA: %w: %w", errors.ErrUnsupported, cause)
}
