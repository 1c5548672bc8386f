package main

import (
	"bytes"
	"io"
	"sync"
)

// prefixWriter writes whole lines to w, each with a prefix, while it holds mu.
type prefixWriter struct {
	w      io.Writer
	mu     *sync.Mutex
	prefix string
	line   []byte // begun but not ended
}

func (p *prefixWriter) Write(data []byte) (int, error) {
	p.line = append(p.line, data...)
	end := bytes.LastIndexByte(p.line, '\n') + 1
	if end == 0 {
		return len(data), nil
	}
	var out []byte
	for line := range bytes.Lines(p.line[:end]) {
		out = append(append(out, p.prefix...), line...)
	}
	p.line = append(p.line[:0], p.line[end:]...)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.w.Write(out)
	return len(data), err
}

// flush ends a line that was begun.
func (p *prefixWriter) flush() {
	if len(p.line) > 0 {
		_, _ = p.Write([]byte("\n"))
	}
}
