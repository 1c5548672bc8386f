package host

import (
	"fmt"

	"github.com/ringnet/ringnet/internal/provider"
)

// Defect is one of a provider of rdma-core, which ringnet meets or may meet.
type Defect struct {
	provider string // "" for what all have
	releases provider.Releases
	What     string
	Commit   string // of rdma-core, by which it is fixed
	Detour   string // how ringnet goes round it, or ""
}

// Defects that are known: of each, the first releases that have it, and that have it no more. Both were looked
// up in rdma-core's tags up to v64.0, the point releases of each version among them.
var defects = []Defect{
	{"bnxt_re", provider.GarbledInline,
		"garbles inline data of up to 96 bytes that is posted alone, where the firmware has push", "9558f227b",
		"it sends nothing inline, unless RINGNET_INLINE is set"},
	{"bnxt_re", provider.Releases{Since: []Version{{47, 0}}, Fixed: []Version{{50, 0}}},
		"gives a request without data the length of the one before it in its post", "68f59cd6b",
		"such a request is the first of a post"},
	{"bnxt_re", provider.Releases{Since: []Version{{50, 0}}, Fixed: []Version{{50, 1}, {51, 1}}},
		"misplaces the table of sequence numbers of newer cards (BCM57608), and links die", "65197a494", ""},
	{"bnxt_re", provider.Releases{Since: []Version{{23, 0}}, Fixed: []Version{{51, 7}, {52, 6}, {53, 6}, {54, 5}, {55, 4}, {56, 4}, {57, 3}, {58, 2}, {59, 2}, {60, 2}, {61, 1}, {62, 1}, {63, 1}}},
		"asks newer kernels for queues with a mask that it has not set, which they refuse now and then", "cfba7251f",
		"it wipes the stack before"},
	{"bnxt_re", provider.Releases{Since: []Version{{36, 16}, {37, 15}, {38, 14}, {39, 13}, {40, 12}, {41, 12}, {42, 12}, {43, 11}, {44, 11}, {45, 10}, {46, 9}, {47, 5}, {48, 4},
		{49, 4}, {50, 3}, {51, 3}, {52, 2}, {53, 2}, {54, 1}, {55, 1}, {56, 0}}},
		"has the kernel log an error for each queue pair whose inline data is more than the card has, which does no harm", "",
		"it asks a device for more once in each process"},
	{"hns", provider.StaleWQE,
		"executes a wrong request when a queue wraps, if requests are posted alone and in batches (HIP09)", "15adbcf23",
		"it posts each request alone"},
	{"irdma", provider.Releases{Since: []Version{{37, 0}}, Fixed: []Version{{44, 0}}},
		"may report success of a request that has failed", "7f9761eb5",
		"what is not set is no success"},
	{"mana", provider.Releases{Since: []Version{{44, 0}}, Fixed: []Version{{53, 3}, {54, 2}, {55, 1}, {56, 1}}},
		"does not connect, or fails with requests and receives without data", "b8e99f551", ""},
	{"", provider.EqualGUIDs,
		"may open another device than the connection's, since several have the same node GUID", "28da4a8de", ""},
}

// firsts are the first versions that have a provider, or know a card, where ringnet runs with older ones.
var firsts = map[string]Version{"irdma": {37, 0}, "erdma": {43, 0}, "mana": {44, 0}, "ionic": {61, 0}, "0x14e4:0x1760": {50, 0}} // BCM57608

// Defects are those that a device meets with these libraries: none if their version is not known. equalGUIDs
// says that it shares its node GUID with another one.
func (l Libraries) Defects(d Device, equalGUIDs bool) (all []Defect) {
	for _, x := range defects {
		if (x.provider == providers[d.Driver] || x.provider == "" && equalGUIDs) && x.releases.Have(l.Version) {
			all = append(all, x)
		}
	}
	return all
}

// Fix is what is without the defect, for who has a version.
func (x Defect) Fix(have Version) string {
	if len(x.releases.Fixed) == 0 {
		return ""
	}
	last := x.releases.Fixed[len(x.releases.Fixed)-1]
	fix := fmt.Sprintf("rdma-core %d.0", last[0]+1)
	if last[1] == 0 {
		fix = "rdma-core " + last.String()
	}
	for _, r := range x.releases.Fixed {
		if r[0] == have[0] {
			fix = "rdma-core " + r.String()
		}
	}
	return fix + " or newer, or a revision of the distribution's that has " + x.Commit
}

// TooOld is the first version that knows the device, if the libraries' is older.
func (l Libraries) TooOld(d Device) (first Version, old bool) {
	first, known := firsts[d.PCI]
	if !known {
		first = firsts[providers[d.Driver]]
	}
	return first, l.Version != (Version{}) && l.Version.Less(first)
}
