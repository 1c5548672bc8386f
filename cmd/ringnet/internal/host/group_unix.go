//go:build unix

package host

import (
	"os"
	"strconv"
	"syscall"
)

// groupOf is the group that may read and write a file, unless that is root's.
func groupOf(path string) string {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&0o060 != 0o060 {
		return ""
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Gid != 0 {
		return strconv.Itoa(int(s.Gid))
	}
	return ""
}
