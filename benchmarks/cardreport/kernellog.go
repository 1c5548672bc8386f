package cardreport

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"syscall"
)

// kernelLog is what the kernel has said since it was opened.
type kernelLog struct {
	fd  int
	err error // why it cannot be read
}

// openKernelLog begins behind what has been said before.
func openKernelLog() (l kernelLog) {
	if l.fd, l.err = syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0); l.err == nil {
		_, l.err = syscall.Seek(l.fd, 0, io.SeekEnd)
	}
	return l
}

// aboutCards are lines of the kernel that may be about RDMA. Others may be about anything, and anybody.
var aboutCards = regexp.MustCompile(`(?i)infiniband|rdma|roce|mlx|bnxt|irdma|\bice\b|i40e|hns|qed|mana|erdma|ionic|\bib[_0-9]|rxe|siw|pcieport|\baer\b|iommu|dmar|link is (up|down)|link (up|down)`)

// tell adds the lines that may be about RDMA.
func (l kernelLog) tell(p *Part) {
	p.Note = "What the kernel has said meanwhile of RDMA, cards and links. Other lines are left out, and repeated ones."
	if l.err != nil {
		p.problem("the kernel's log cannot be read, but by root perhaps: %v", l.err)
		return
	}
	defer syscall.Close(l.fd)
	left, last := 0, ""
	for record := make([]byte, 8192); ; {
		n, err := syscall.Read(l.fd, record)
		switch {
		case errors.Is(err, syscall.EPIPE): // it has been overwritten, and the next read goes on behind that
			continue
		case n <= 0:
			p.Details = strings.Join(append(strings.Split(strings.TrimSpace(p.Details), "\n"), fmt.Sprintf("(%d other lines)", left)), "\n")
			return
		}
		_, line, _ := strings.Cut(string(record[:n]), ";") // "priority,number,time,flags;text", and lines of "\tNAME=value"
		if line, _, _ = strings.Cut(line, "\n"); line == last || !aboutCards.MatchString(line) {
			left++
			continue
		}
		last = line
		p.Details += line + "\n"
	}
}
