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

// Shown writes text, or JSON, such that a terminal may show it. What is not printable it replaces in text, and
// escapes in JSON, where it is in strings alone and so means the same.
type Shown struct {
	io.Writer
	JSON bool
}

// Write implements io.Writer. No character may be in two calls.
func (w Shown) Write(p []byte) (int, error) {
	var shown strings.Builder
	for _, r := range string(p) {
		switch {
		case unicode.IsPrint(r) || r == '\n' || r == '\t':
			shown.WriteRune(r)
		case !w.JSON:
			shown.WriteRune(unicode.ReplacementChar)
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
