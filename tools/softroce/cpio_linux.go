package main

// This file writes cpio archives in the "newc" format, which is what the Linux
// kernel unpacks as its initial file system: see
// Documentation/driver-api/early-userspace/buffer-format.rst in its source.

import (
	"fmt"
	"io"
	"io/fs"
)

// cpioWriter writes an archive. The first error sticks, and close returns it.
type cpioWriter struct {
	w      io.Writer
	offset int64
	inode  int
	err    error
}

// Types of files in the mode of an entry.
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
)

func (c *cpioWriter) dir(name string) {
	c.entry(name, cpioDir|0o755, nil)
}

func (c *cpioWriter) file(name string, perm fs.FileMode, data []byte) {
	c.entry(name, cpioFile|uint32(perm.Perm()), data)
}

// close writes the trailer that ends an archive.
func (c *cpioWriter) close() error {
	c.entry("TRAILER!!!", 0, nil)
	return c.err
}

func (c *cpioWriter) entry(name string, mode uint32, data []byte) {
	c.inode++
	// Magic, inode, mode, uid, gid, links, mtime, size, device major and
	// minor, rdev major and minor, length of the name with its NUL, checksum.
	c.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name))
	c.pad()
	c.write(data)
	c.pad()
}

// pad fills up to the next multiple of 4, where headers and contents begin.
func (c *cpioWriter) pad() {
	c.write(make([]byte, -c.offset&3))
}

func (c *cpioWriter) write(p []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(p)
	c.offset += int64(n)
	c.err = err
}
