package provider

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionIsThatInTheNameOfTheFile(t *testing.T) {
	for path, want := range map[string]Version{
		"/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0": {50, 0},
		"/usr/lib64/libibverbs.so.1.8.28.0":                 {28, 0},
		"/opt/card/libibverbs.so.1":                         {},
		"/usr/lib64/libibverbs.so.1.14.50.0.weird":          {},
		"": {},
	} {
		require.Equal(t, want, VersionOf(path), path)
	}
}

func TestDetourIsThatOfDriverAndRelease(t *testing.T) {
	for _, x := range []struct {
		driver string
		v      Version
		want   Detour
	}{
		{"bnxt_en", Version{50, 0}, Detour{Inline: true}},
		{"bnxt_en", Version{50, 4}, Detour{}},
		{"bnxt_en", Version{46, 9}, Detour{}},
		{"bnxt_en", Version{57, 0}, Detour{}},
		{"hns3", Version{50, 0}, Detour{Batch: true}},
		{"hns3", Version{60, 1}, Detour{}},
		{"hns3", Version{}, Detour{}},
		{"mlx5_core", Version{50, 0}, Detour{}},
		{"", Version{50, 0}, Detour{}},
	} {
		require.Equal(t, x.want, DetourOf(x.driver, x.v), "%s %v", x.driver, x.v)
	}
}
