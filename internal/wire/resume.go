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
)

// What a link goes on with over another queue pair.

// SecretSize is the size of a link's secret, in bytes.
const SecretSize = 16

// Return is where a side takes the link up again, and, of the side that accepts,
// how each knows the other then.
type Return struct {
	Port   uint16       // of the connection manager, at the address that the link has
	Others []netip.Addr // of its other cards, at which that port serves, too
	Link   uint64       // answer: a number of the link
	Secret [SecretSize]byte
}

// returnAt is where a Return stands in private data, and toldAt where one of an answer
// goes on with the other cards.
const (
	returnAt = HelloSize + RecordSize + 2
	toldAt   = returnAt + 10 + SecretSize
)

// answerRoom is what the connection manager carries in an answer, in bytes, but for what
// tells of the mailbox.
const answerRoom = 184

// AppendRequest appends to the private data of a request what it tells of r: of the other
// cards the first with an IPv4 address, for more there is no room.
func (r Return) AppendRequest(b []byte) []byte {
	b = append(b, make([]byte, returnAt-len(b))...)
	b = binary.BigEndian.AppendUint16(b, r.Port)
	if i := slices.IndexFunc(r.Others, netip.Addr.Is4); i >= 0 {
		as4 := r.Others[i].As4()
		b = append(b, as4[:]...)
	}
	return b
}

// AppendAnswer appends all of r, to the private data of an answer.
func (r Return) AppendAnswer(b []byte) []byte {
	b = append(b, make([]byte, returnAt-len(b))...)
	b = binary.BigEndian.AppendUint16(b, r.Port)
	b = binary.BigEndian.AppendUint64(b, r.Link)
	return appendAddrs(append(b, r.Secret[:]...), answerRoom, r.Others)
}

const addrSize = 16

// appendAddrs appends as many addresses as there is room for in so many bytes.
func appendAddrs(b []byte, room int, addrs []netip.Addr) []byte {
	for _, a := range addrs[:min(len(addrs), (room-len(b))/addrSize)] {
		as16 := a.As16()
		b = append(b, as16[:]...)
	}
	return b
}

// decodeAddrs takes the addresses that stand in b, up to the first that is none.
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

// RequestedReturn is what a request tells, or nothing if the side that sent it does
// not take links up again.
func RequestedReturn(b []byte) (r Return, ok bool) {
	r, ok = returnPort(b)
	if other := b[min(len(b), returnAt+2):]; ok && len(other) >= 4 {
		if a := netip.AddrFrom4([4]byte(other)); !a.IsUnspecified() {
			r.Others = []netip.Addr{a}
		}
	}
	return r, ok
}

// returnPort is what requests and answers have in common.
func returnPort(b []byte) (r Return, ok bool) {
	hello, _, err := DecodeHello(b)
	if err != nil || hello.Features&Resume == 0 || len(b) < returnAt+2 {
		return Return{}, false
	}
	r.Port = binary.BigEndian.Uint16(b[returnAt:])
	return r, r.Port != 0
}

// AnsweredReturn is what an answer tells.
func AnsweredReturn(b []byte) (r Return, ok bool) {
	if r, ok = returnPort(b); !ok || len(b) < toldAt {
		return Return{}, false
	}
	r.Link = binary.BigEndian.Uint64(b[returnAt+2:])
	copy(r.Secret[:], b[returnAt+10:])
	r.Others = decodeAddrs(b[toldAt:])
	return r, true
}

// ResumptionKind is what a Resumption is.
type ResumptionKind uint16

const (
	ResumeRequest ResumptionKind = 1 + iota // from the side that dialed the link: here is another queue pair
	ResumeAnswer                            // to that: it will do
	ResumeAsk                               // from the other side: is there such a link? The answer is a rejection
	ResumeStandby                           // from the side that dialed the link: here is one to go on over when that is lost
	resumptionKinds
)

// Resumption is the private data with which a link goes on over another queue pair.
// Whoever has not the link's secret can neither make one nor change it: see Seal.
type Resumption struct {
	Kind ResumptionKind
	Link uint64

	// Attempt counts queue pairs, from 1: each request has a higher one than the last,
	// and its answer the same. A question has that of the queue pair that its sender
	// has lost, which is 0 if that was the link's first.
	Attempt uint64
}

const (
	resumptionBody = 8 + 2*8
	macSize        = 16
)

// ResumptionSize is the size of an encoded Resumption, in bytes.
const ResumptionSize = resumptionBody + macSize

// Seal is what makes a resumption its sender's word, to one receiver: the link's secret,
// and the addresses by which the connection manager knows both. Who gets one that was
// meant for it, or for another, cannot hand it on to the peer from an address of its own.
type Seal struct {
	Secret   [SecretSize]byte
	From, To netip.Addr // whose zones do not count
}

// Append appends the encoded resumption to b.
func (r Resumption) Append(b []byte, s Seal) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, Version)
	b = binary.BigEndian.AppendUint16(b, resumptions|uint16(r.Kind))
	b = binary.BigEndian.AppendUint64(b, r.Link)
	b = binary.BigEndian.AppendUint64(b, r.Attempt)
	return append(b, s.mac(b[start:])...)
}

// resumptions has a bit set that no hello has: who takes one for the other refuses
// it.
const resumptions = 1 << 15

// mac is the code behind the body of a resumption.
func (s Seal) mac(body []byte) []byte {
	h := hmac.New(sha256.New, s.Secret[:])
	h.Write(body)
	for _, a := range []netip.Addr{s.From, s.To} {
		as16 := a.As16()
		h.Write(as16[:])
	}
	return h.Sum(nil)[:macSize]
}

var errNoResumption = errors.New("the private data are not about a link to be taken up again")

// DecodeResumption decodes private data, which may be padded. They are nobody's word
// before Seal.Fits has said whose.
func DecodeResumption(b []byte) (Resumption, error) {
	if err := checkHeader(b); err != nil {
		return Resumption{}, err
	}
	kind := binary.BigEndian.Uint16(b[6:])
	if kind&resumptions == 0 {
		return Resumption{}, errNoResumption
	}
	kind &^= resumptions
	if len(b) < ResumptionSize || kind == 0 || kind >= uint16(resumptionKinds) {
		return Resumption{}, fmt.Errorf("%w: kind %d in %d bytes", errNoResumption, kind, len(b))
	}
	return Resumption{
		Kind:    ResumptionKind(kind),
		Link:    binary.BigEndian.Uint64(b[8:]),
		Attempt: binary.BigEndian.Uint64(b[16:]),
	}, nil
}

// Fits says whether private data that DecodeResumption has decoded were made with this
// seal.
func (s Seal) Fits(b []byte) bool {
	return hmac.Equal(b[resumptionBody:ResumptionSize], s.mac(b[:resumptionBody]))
}

// Keys are what a side tells once the queue pair is another one: what it has received
// over those before, and by which keys the memory that its peer knows is known now.
// They are sent in as many SENDs as it takes, each answered by one of the peer's,
// before anything else.
type Keys struct {
	Received Header // messages of the peer's since the link began; the same in each SEND
	More     bool   // regions after these
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

// MaxRegions is how many there may be in a SEND.
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
	if len(b) < keysSize || b[HeaderSize] > 1 || len(b) != keysSize+regionSize*int(b[HeaderSize+1]) {
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

// Regions are memory, by address.
type Regions []Region

// Sort puts regions in order, as Key wants them.
func (r Regions) Sort() {
	slices.SortFunc(r, func(a, b Region) int { return cmp.Compare(a.Addr, b.Addr) })
}

// Key is that of the region in which a ring lies, or the one that it had if it is in
// none.
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

// Rekey gives the ring that an encoded record tells of, if it does, the key that it
// has now.
func (r Regions) Rekey(record []byte) {
	switch RecordType(record[0]) {
	case OpenRecord, AcceptRecord, RingRecord:
		p := RingPlace{Addr: binary.BigEndian.Uint64(record[8:]), RKey: binary.BigEndian.Uint32(record[4:])}
		binary.BigEndian.PutUint32(record[4:], r.Key(p))
	}
}
