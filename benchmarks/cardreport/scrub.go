package cardreport

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/user"
	"path"
	"regexp"
	"slices"
	"strings"
)

// scrubber leaves out of texts what says where a host is, or whose.
type scrubber struct {
	names *regexp.Regexp  // of the host and its user; nil if there are none
	keep  []string        // what looks like an address and is none
	left  map[string]bool // all that has been left out
}

// common are words that say nothing of who uses the host.
var common = []string{"", "root", "localhost", "localdomain"}

// newScrubber makes one that knows this host's names, and those of others.
func newScrubber(others ...string) *scrubber {
	words := others
	if name, err := os.Hostname(); err == nil {
		words = append(words, name)
	}
	if u, err := user.Current(); err == nil {
		words = append(words, u.Username)
	}
	for _, variable := range []string{"USER", "LOGNAME", "SUDO_USER", "HOSTNAME"} {
		words = append(words, os.Getenv(variable))
	}
	var all []string
	for _, word := range words {
		first, _, _ := strings.Cut(word, ".")
		if _, err := netip.ParseAddr(word); err == nil {
			first = word // of an address, no part is a name
		}
		for _, w := range []string{word, first} {
			if !slices.Contains(common, w) {
				all = append(all, regexp.QuoteMeta(w))
			}
		}
	}
	if len(all) == 0 {
		return &scrubber{left: make(map[string]bool)}
	}
	return &scrubber{left: make(map[string]bool), names: regexp.MustCompile(`\b(` + strings.Join(all, "|") + `)\b`)}
}

// The forms of what is left out. Interfaces and devices may be named after their addresses.
var (
	ipv4      = regexp.MustCompile(`\b(?:\d{1,3}\.){3}\d{1,3}\b`)
	colons    = regexp.MustCompile(`(?i)\b(?:[0-9a-f]{1,4}:){3,}[0-9a-f]{1,4}\b`) // MACs, GUIDs, GIDs, and IPv6
	shortened = regexp.MustCompile(`(?i)(?:\b[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?(?:%\w+)?`)
	guid      = regexp.MustCompile(`(?i)\b(?:0x)?(?:[0-9a-f]{16}|[0-9a-f]{32})\b`)
	named     = regexp.MustCompile(`\b(enx|wlx|rocex|ibx|iwx|opax)[0-9a-f]{12,16}\b`)
	file      = regexp.MustCompile(`(^|[\s"'=(:\[])((?:/[\w.+@~-]+){2,}/?)`)
)

// public are the beginnings of paths that are the same on all hosts.
var public = []string{"/dev/infiniband", "/sys/class/infiniband", "/etc/security", "/etc/udev", "/usr/lib", "/usr/lib64", "/lib64"}

// text is a text without.
func (s *scrubber) text(text string) string {
	text = file.ReplaceAllStringFunc(text, func(found string) string {
		start := strings.Index(found, "/")
		if slices.ContainsFunc(public, func(p string) bool { return strings.HasPrefix(found[start:], p) }) {
			return found
		}
		s.left[path.Dir(found[start:])] = true
		return found[:start] + path.Base(found[start:])
	})
	if s.names != nil {
		text = s.names.ReplaceAllStringFunc(text, func(found string) string {
			s.left[found] = true
			return "NAME"
		})
	}
	for _, form := range []*regexp.Regexp{shortened, colons, ipv4, guid} {
		text = form.ReplaceAllStringFunc(text, func(found string) string {
			if slices.ContainsFunc(s.keep, func(k string) bool { return strings.Contains(k, found) }) {
				return found
			}
			s.left[found] = true
			return "ADDRESS"
		})
	}
	return named.ReplaceAllString(text, "${1}ADDRESS")
}

// parts are copies without.
func (s *scrubber) parts(all []*Part) (scrubbed []*Part, err error) {
	text, err := s.json(all)
	return scrubbed, errors.Join(err, json.Unmarshal(text, &scrubbed))
}

// literal is a string in JSON, or the name of a field.
var literal = regexp.MustCompile(`"(?:[^"\\]|\\.)*":?`)

// json encodes a value without.
func (s *scrubber) json(v any) ([]byte, error) {
	encoded, err := json.MarshalIndent(v, "", "\t")
	return literal.ReplaceAllFunc(encoded, func(found []byte) []byte {
		var decoded string
		if json.Unmarshal(found, &decoded) != nil {
			return found // a name, with its colon
		}
		scrubbed, _ := json.Marshal(s.text(decoded))
		return scrubbed
	}), err
}
