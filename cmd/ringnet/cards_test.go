package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func cardAt(name string, prefixes ...string) card {
	c := card{name: name}
	for _, p := range prefixes {
		c.addresses = append(c.addresses, netip.MustParsePrefix(p))
	}
	return c
}

func TestDoctorFindsWhetherLinksCanGoOnOverAnotherCard(t *testing.T) {
	for name, tt := range map[string]struct {
		cards []card
		want  []string // how each finding begins; none of them is bad
	}{
		"no card":  {nil, nil},
		"one card": {[]card{cardAt("a", "10.0.0.1/24", "10.0.1.1/24")}, []string{"note a link that loses its card waits for it"}},
		"two":      {[]card{cardAt("a", "10.0.0.1/24"), cardAt("b", "10.0.1.1/24")}, []string{"ok a link to a host"}},
		"IPv6":     {[]card{cardAt("a", "10.0.0.1/24", "fd00::1/64"), cardAt("b", "fd00::2/64")}, []string{"ok a link to a host"}},
		"of different families": {[]card{cardAt("a", "10.0.0.1/24"), cardAt("b", "fd00::1/64")},
			[]string{"note a link that loses its card waits for it"}},
		"two of three in one subnet": {[]card{cardAt("a", "10.0.0.1/24"), cardAt("b", "10.0.1.1/24"), cardAt("c", "10.0.0.2/24")},
			[]string{"ok a link to a host", "note a and c are both in 10.0.0.0/24"}},
	} {
		t.Run(name, func(t *testing.T) {
			var d diagnosis
			d.checkCards(tt.cards)
			require.Len(t, d.Findings, len(tt.want))
			for i, want := range tt.want {
				f := d.Findings[i]
				require.Regexp(t, "^"+want, string(f.Status)+" "+f.What)
				require.Equal(t, f.Status != good, f.Mend != "")
			}
		})
	}
}
