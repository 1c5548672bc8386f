//go:build unix

package transfer

import (
	"io/fs"
	"os"
	"syscall"
)

// isOwn reports whether a file is this user's, and has one name only.
func isOwn(file fs.FileInfo) bool {
	stat, ok := file.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 1 && int(stat.Uid) == os.Geteuid()
}

// nonblocking keeps an open from waiting, should a file have become a pipe.
const nonblocking = syscall.O_NONBLOCK
