// Package provider knows the releases of rdma-core in which a provider, the library of a driver, has a defect that
// is to be gone round, and what the environment sets for all of them.
package provider

import (
	"regexp"
	"strconv"
)

// Version is one of rdma-core, major and minor: 50.4 is {50, 4}. The zero Version is not known.
type Version [2]int

func (v Version) String() string {
	if v == (Version{}) {
		return "of an unknown version"
	}
	return strconv.Itoa(v[0]) + "." + strconv.Itoa(v[1])
}

// Less reports whether v is older than w.
func (v Version) Less(w Version) bool {
	return v[0] < w[0] || v[0] == w[0] && v[1] < w[1]
}

// ibverbs is the name of libibverbs' file: behind the version of its interface it has that of rdma-core.
var ibverbs = regexp.MustCompile(`/libibverbs\.so\.1\.\d+\.(\d+)\.(\d+)$`)

// VersionOf is the version of rdma-core by the path of libibverbs' file, all links followed.
func VersionOf(path string) (v Version) {
	if m := ibverbs.FindStringSubmatch(path); m != nil {
		v[0], _ = strconv.Atoi(m[1])
		v[1], _ = strconv.Atoi(m[2])
	}
	return v
}

// Releases are those that have a defect: of each, the first that has it, and that has it no more.
type Releases struct{ Since, Fixed []Version }

// Have reports whether a version is among them. One that is not known is not.
func (r Releases) Have(v Version) bool { return v.isFrom(r.Since) && !v.isFrom(r.Fixed) }

// isFrom reports whether a version is one of the releases or a later one of the same major version, or is of a
// major version behind them all.
func (v Version) isFrom(releases []Version) bool {
	for _, r := range releases {
		if v[0] == r[0] {
			return !v.Less(r)
		}
	}
	return len(releases) > 0 && releases[len(releases)-1].Less(v)
}

// Defects that are gone round where driver and release are recognised: looked up in rdma-core's tags up to v64.0, the
// point releases of each version among them.
var (
	// GarbledInline is of bnxt_re: it garbles inline data of up to 96 bytes that is posted alone (9558f227b).
	GarbledInline = Releases{
		[]Version{{47, 0}},
		[]Version{{47, 6}, {48, 5}, {49, 5}, {50, 4}, {51, 4}, {52, 3}, {53, 3}, {54, 2}, {55, 1}, {56, 1}},
	}
	// StaleWQE is of hns: a request in a batch is another, if the one before it at its place in the queue was posted
	// alone (15adbcf23).
	StaleWQE = Releases{
		[]Version{{39, 0}},
		[]Version{{39, 13}, {40, 12}, {41, 12}, {42, 12}, {43, 11}, {44, 11}, {45, 10}, {46, 9}, {47, 8}, {48, 7}, {49, 7}, {50, 6},
			{51, 6}, {52, 5}, {53, 5}, {54, 4}, {55, 3}, {56, 3}, {57, 2}, {58, 1}, {59, 1}, {60, 1}},
	}
	// EqualGUIDs is of rdma-core itself: it finds devices by their node GUIDs alone (28da4a8de).
	EqualGUIDs = Releases{[]Version{{23, 0}}, []Version{{30, 0}}}
)

// Detour is what a device is used without.
type Detour struct {
	Inline bool // no inline data
	Batch  bool // each request is posted alone
}

// DetourOf is that of a device with a driver, by its name in /sys.
func DetourOf(driver string, v Version) Detour {
	return Detour{
		Inline: driver == "bnxt_en" && GarbledInline.Have(v),
		Batch:  driver == "hns3" && StaleWQE.Have(v),
	}
}
