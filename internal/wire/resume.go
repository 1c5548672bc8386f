package wire

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ringnet/ringnet/credit"
)

// What two sides exchange so that a link goes on over another queue pair.

// SecretSize is the size of a link's secret, in bytes.
const SecretSize = 16

// Reconnect is where a side takes the link up again. That of the side that accepts also has
// the number and the secret by which both know each other then.
type Reconnect struct {
	Port   uint16           // of the connection manager, at the address that the link has
	Others []netip.Addr     // of the side's other cards, which have the same port
	Link   uint64           // answer: the link's number
	Secret [SecretSize]byte // answer
}

// Where things stand in private data, in bytes: a Reconnect, and in that of an answer the
// addresses of the other cards.
const (
	returnAt = HelloSize + RecordSize + 2
	othersAt = returnAt + 10 + SecretSize
)

// answerRoom is how many bytes the connection manager carries in an answer, less those
// that describe the path's MTU and the mailbox.
const answerRoom = 183

// AppendRequest appends r to the private data of a request, which has room for one of the
// other cards: the first with an IPv4 address.
func (r Reconnect) AppendRequest(b []byte) []byte {
	b = append(b, make([]byte, returnAt-len(b))...)
	b = binary.BigEndian.AppendUint16(b, r.Port)
	if i := slices.IndexFunc(r.Others, netip.Addr.Is4); i >= 0 {
		as4 := r.Others[i].As4()
		b = append(b, as4[:]...)
	}
	return b
}

// AppendAnswer appends all of r to the private data of an answer.
func (r Reconnect) AppendAnswer(b []byte) []byte {
	b = append(b, make([]byte, returnAt-len(b))...)
	b = binary.BigEndian.AppendUint16(b, r.Port)
	b = binary.BigEndian.AppendUint64(b, r.Link)
	return appendAddrs(append(b, r.Secret[:]...), answerRoom, r.Others)
}

const addrSize = 16

// appendAddrs appends addresses, as many as fit if b is to have room bytes at most.
func appendAddrs(b []byte, room int, addrs []netip.Addr) []byte {
	for _, a := range addrs[:min(len(addrs), (room-len(b))/addrSize)] {
		as16 := a.As16()
		b = append(b, as16[:]...)
	}
	return b
}

// decodeAddrs returns the addresses in b, up to the first that is unspecified.
func decodeAddrs(b []byte) (addrs []netip.Addr) {
	for ; len(b) >= addrSize; b = b[addrSize:] {
		a := netip.AddrFrom16([addrSize]byte(b)).Unmap()
		if a.IsUnspecified() {
			break
		}
		addrs = append(addrs, a)
	}
	return addrs
}

// RequestedReconnect decodes the Reconnect of a request. ok is false if the side that has sent
// it does not take links up again.
func RequestedReconnect(b []byte) (r Reconnect, ok bool) {
	r, ok = returnPort(b)
	if other := b[min(len(b), returnAt+2):]; ok && len(other) >= 4 {
		if a := netip.AddrFrom4([4]byte(other)); !a.IsUnspecified() {
			r.Others = []netip.Addr{a}
		}
	}
	return r, ok
}

// returnPort decodes what requests and answers have in common.
func returnPort(b []byte) (r Reconnect, ok bool) {
	hello, _, err := DecodeHello(b)
	if err != nil || hello.Features&Resume == 0 || len(b) < returnAt+2 {
		return Reconnect{}, false
	}
	r.Port = binary.BigEndian.Uint16(b[returnAt:])
	return r, r.Port != 0
}

// AnsweredReconnect decodes the Reconnect of an answer. ok is as RequestedReconnect's.
func AnsweredReconnect(b []byte) (r Reconnect, ok bool) {
	if r, ok = returnPort(b); !ok || len(b) < othersAt {
		return Reconnect{}, false
	}
	r.Link = binary.BigEndian.Uint64(b[returnAt+2:])
	copy(r.Secret[:], b[returnAt+10:])
	r.Others = decodeAddrs(b[othersAt:])
	return r, true
}

// ResumptionKind is what a Resumption is.
type ResumptionKind uint16

// The kinds, by their numbers on the wire.
const (
	ResumeRequest ResumptionKind = 1 + iota // go on over this queue pair
	ResumeAnswer                            // accepts a request
	resumptionKinds
)

// Resumption is the private data by which a link goes on over another queue pair. Only who
// has the link's secret can make one, or change it: see Seal.
type Resumption struct {
	Kind    ResumptionKind
	Passive bool // from the side that accepted the link; else from the side that dialed it
	Link    uint64

	// Each side counts its requests, from 1. Attempt is the number of the request, also in
	// its answer. Taken is, in a request, the number of the last request of the peer's that
	// its sender had taken by then, or 0: so a request that comes late, when the two have
	// agreed on another since, is known from one that says that this other is lost.
	Attempt, Taken uint32
}

// Answer is what accepts a request.
func (r Resumption) Answer() Resumption {
	return Resumption{Kind: ResumeAnswer, Passive: !r.Passive, Link: r.Link, Attempt: r.Attempt}
}

const (
	resumptionBody = 8 + 8 + 2*4
	macSize        = 16
)

// ResumptionSize is the size of an encoded Resumption, in bytes.
const ResumptionSize = resumptionBody + macSize

// Seal authenticates a resumption, for one sender and one receiver: by the link's secret,
// and by the addresses under which the connection manager knows both. So nobody who has
// received a resumption, or intercepted one, can send it from an address of their own.
type Seal struct {
	Secret   [SecretSize]byte
	From, To netip.Addr // zones are ignored
}

// Append appends the encoded resumption to b.
func (r Resumption) Append(b []byte, s Seal) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, Version)
	kind := resumptions | uint16(r.Kind)
	if r.Passive {
		kind |= fromPassive
	}
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint64(b, r.Link)
	b = binary.BigEndian.AppendUint32(b, r.Attempt)
	b = binary.BigEndian.AppendUint32(b, r.Taken)
	return append(b, s.mac(b[start:])...)
}

// resumptions is a bit that is set in resumptions, and in no hello, so that neither is
// taken for the other: it cannot become a feature.
const resumptions = 1 << 15

// fromPassive is a bit that is set in the resumptions of the side that accepted the link.
const fromPassive = 1 << 14

// mac is the message authentication code that follows the body of a resumption.
func (s Seal) mac(body []byte) []byte {
	h := hmac.New(sha256.New, s.Secret[:])
	h.Write(body)
	for _, a := range []netip.Addr{s.From, s.To} {
		as16 := a.As16()
		h.Write(as16[:])
	}
	return h.Sum(nil)[:macSize]
}

var (
	errResumption   = errors.New("the private data are about a link to be taken up again")
	errNoResumption = errors.New("the private data are not about a link to be taken up again")
)

// DecodeResumption decodes private data, which may be padded. Until Seal.Fits has
// returned true, anyone may have sent them.
func DecodeResumption(b []byte) (Resumption, error) {
	if err := checkHeader(b); err != nil {
		return Resumption{}, err
	}
	kind := binary.BigEndian.Uint16(b[6:])
	if kind&resumptions == 0 {
		return Resumption{}, errNoResumption
	}
	passive := kind&fromPassive != 0
	kind &^= resumptions | fromPassive
	if len(b) < ResumptionSize || kind == 0 || kind >= uint16(resumptionKinds) {
		return Resumption{}, fmt.Errorf("%w: kind %d in %d bytes", errNoResumption, kind, len(b))
	}
	return Resumption{
		Kind:    ResumptionKind(kind),
		Passive: passive,
		Link:    binary.BigEndian.Uint64(b[8:]),
		Attempt: binary.BigEndian.Uint32(b[16:]),
		Taken:   binary.BigEndian.Uint32(b[20:]),
	}, nil
}

// Fits reports whether private data that DecodeResumption has decoded were made with this
// seal.
func (s Seal) Fits(b []byte) bool {
	return hmac.Equal(b[resumptionBody:ResumptionSize], s.mac(b[:resumptionBody]))
}

// Keys are the first that a side sends over another queue pair: what it has received over
// those before, and the remote keys that its memory has now. They take as many SENDs as
// are needed, each answered by one of the peer's.
type Keys struct {
	Received Header // messages of the peer's since the link began; the same in each SEND
	More     bool   // further regions follow in the next SEND; this one is full
	Regions  []Region
}

// Region is memory that a peer may write to.
type Region struct {
	Addr uint64
	Size uint32 // bytes
	Key  uint32
}

const (
	keysSize   = HeaderSize + 2 // without regions
	regionSize = 16
)

// MaxRegions is how many regions a SEND may have.
const MaxRegions = (MessageSize - keysSize) / regionSize

// Append appends the encoded keys to b.
func (k Keys) Append(b []byte) []byte {
	var more byte
	if k.More {
		more = 1
	}
	b = binary.BigEndian.AppendUint64(b, k.Received.Data)
	b = binary.BigEndian.AppendUint64(b, k.Received.Records)
	b = append(b, more, byte(len(k.Regions)))
	for _, r := range k.Regions {
		b = binary.BigEndian.AppendUint64(b, r.Addr)
		b = binary.BigEndian.AppendUint32(b, r.Size)
		b = binary.BigEndian.AppendUint32(b, r.Key)
	}
	return b
}

// DecodeKeys decodes a SEND with keys.
func DecodeKeys(b []byte) (Keys, error) {
	if len(b) < keysSize || b[HeaderSize] > 1 || len(b) != keysSize+regionSize*int(b[HeaderSize+1]) ||
		b[HeaderSize] == 1 && len(b) < keysSize+regionSize*MaxRegions {
		return Keys{}, fmt.Errorf("keys in a message of %d bytes", len(b))
	}
	k := Keys{Received: Header{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}, More: b[HeaderSize] == 1}
	for b = b[keysSize:]; len(b) > 0; b = b[regionSize:] {
		k.Regions = append(k.Regions, Region{
			Addr: binary.BigEndian.Uint64(b),
			Size: binary.BigEndian.Uint32(b[8:]),
			Key:  binary.BigEndian.Uint32(b[12:]),
		})
	}
	return k, nil
}

// Regions are memory, sorted by address.
type Regions []Region

// Sort sorts the regions by address. Key and Rekey need that.
func (r Regions) Sort() {
	slices.SortFunc(r, func(a, b Region) int { return cmp.Compare(a.Addr, b.Addr) })
}

// Key is the key of the region in which a ring lies, or p.RKey if it lies in none.
func (r Regions) Key(p RingPlace) uint32 {
	i, found := slices.BinarySearchFunc(r, p.Addr, func(a Region, addr uint64) int { return cmp.Compare(a.Addr, addr) })
	if !found {
		i--
	}
	if i < 0 || p.Addr-r[i].Addr >= uint64(r[i].Size) {
		return p.RKey
	}
	return r[i].Key
}

// Rekey replaces the key of the ring in an encoded record, if it has one, by the key that
// the ring has now.
func (r Regions) Rekey(record []byte) {
	switch credit.Record(record[0]) {
	case credit.OpenRecord, credit.AcceptRecord, credit.RingRecord:
		p := RingPlace{Addr: binary.BigEndian.Uint64(record[8:]), RKey: binary.BigEndian.Uint32(record[4:])}
		binary.BigEndian.PutUint32(record[4:], r.Key(p))
	}
}
