package endpoint

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Printable replaces what is not printable, such as commands to a terminal, in a text of a
// peer's.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// JSONWriter writes JSON, whole texts at a time, such that a terminal may show it: what is not printable, which is in
// strings alone, is escaped, and so means the same.
type JSONWriter struct{ io.Writer }

// Write implements io.Writer.
func (w JSONWriter) Write(p []byte) (int, error) {
	var shown strings.Builder
	for _, r := range string(p) {
		switch {
		case unicode.IsPrint(r) || r == '\n' || r == '\t':
			shown.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&shown, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&shown, `\u%04x`, r)
		}
	}
	if _, err := io.WriteString(w.Writer, shown.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}
