package credit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSenderAcceptsWhatThePeerHasRoomFor(t *testing.T) {
	s := NewSender(64, 4)
	require.Equal(t, 64, s.Space())
	s.Accept(0)
	s.Accept(40)
	require.Equal(t, 24, s.Space())
	require.Equal(t, 40, s.Pending())
	require.PanicsWithValue(t, "credit: accepting 25 bytes with space for 24", func() { s.Accept(25) })
	require.PanicsWithValue(t, "credit: accepting -1 bytes with space for 24", func() { s.Accept(-1) })
	s.Accept(24)
	require.Zero(t, s.Space())
	require.Equal(t, uint64(64), s.Accepted())
	require.Zero(t, s.Position())
}

func TestSenderSendsWhatIsAcceptedAndHasAReceive(t *testing.T) {
	s := NewSender(64, 4)
	s.Accept(10)
	require.Panics(t, func() { s.Send(0) })
	require.Panics(t, func() { s.Send(-1) })
	require.PanicsWithValue(t, "credit: sending 11 of 10 bytes, message 1 of 4", func() { s.Send(11) })
	for n := range 4 {
		require.True(t, s.MaySend())
		s.Send(2)
		require.Equal(t, uint64(2*n+2), s.Position())
	}
	require.False(t, s.MaySend())
	require.Equal(t, 2, s.Pending())
	require.PanicsWithValue(t, "credit: sending 1 of 2 bytes, message 5 of 4", func() { s.Send(1) })

	require.NoError(t, s.Credit(0, 1))
	require.True(t, s.MaySend())
	require.Equal(t, 54, s.Space(), "receives are not bytes")
	s.Send(2)
	require.False(t, s.MaySend())
	require.NoError(t, s.Credit(10, 1))
	require.Equal(t, 64, s.Space())
	require.False(t, s.MaySend(), "bytes are not receives")
}

func TestSenderBelievesNoImpossibleCredit(t *testing.T) {
	s := NewSender(64, 8)
	s.Accept(60)
	for range 5 {
		s.Send(10)
	}
	require.NoError(t, s.Credit(20, 2))
	before := s
	for _, c := range []struct {
		consumed, reposted uint64
		want               string
	}{
		{19, 2, "credit runs backwards: 19 bytes, 2 messages after 20, 2"},
		{20, 1, "credit runs backwards: 20 bytes, 1 messages after 20, 2"},
		{0, 0, "credit runs backwards: 0 bytes, 0 messages after 20, 2"},
		{50, 1, "credit runs backwards: 50 bytes, 1 messages after 20, 2"},
		{51, 5, "credit for 51 bytes, 5 messages when 50, 5 were sent"}, // accepted, but not sent
		{50, 6, "credit for 50 bytes, 6 messages when 50, 5 were sent"},
		{math.MaxUint64, 5, "credit for 18446744073709551615 bytes, 5 messages when 50, 5 were sent"},
		{50, math.MaxUint64, "credit for 50 bytes, 18446744073709551615 messages when 50, 5 were sent"},
		{1 << 63, 1 << 63, "credit for 9223372036854775808 bytes, 9223372036854775808 messages when 50, 5 were sent"},
		{math.MaxUint64 - 63, 5, "credit for 18446744073709551552 bytes, 5 messages when 50, 5 were sent"}, // + ring = 0
	} {
		require.EqualError(t, s.Credit(c.consumed, c.reposted), c.want)
		require.Equal(t, before, s, "a bad credit changes nothing")
	}
	require.NoError(t, s.Credit(20, 2), "saying the same again is allowed")
	require.NoError(t, s.Credit(50, 5))
	require.Equal(t, 54, s.Space())
}

func TestReceiverTakesNoMoreThanItGranted(t *testing.T) {
	r := NewReceiver(64, 4)
	for _, c := range []struct {
		n    int
		want string
	}{
		{0, "data message of 0 bytes"},
		{-1, "data message of -1 bytes"},
		{math.MinInt, "data message of -9223372036854775808 bytes"},
		{65, "data up to byte 65 when credit ends at 64"},
		{1 << 31, "data up to byte 2147483648 when credit ends at 64"},
		{math.MaxInt, "data up to byte 9223372036854775807 when credit ends at 64"},
	} {
		require.EqualError(t, r.Receive(c.n), c.want)
		require.Equal(t, NewReceiver(64, 4), r, "a bad message changes nothing")
	}
	require.NoError(t, r.Receive(64))
	require.EqualError(t, r.Receive(1), "data up to byte 65 when credit ends at 64")
	r.Consume(1)
	require.EqualError(t, r.Receive(1), "data up to byte 65 when credit ends at 64", "consumed but not advertised")
	r.Consume(64)
	r.Advertise()
	for range 4 {
		require.NoError(t, r.Receive(1))
	}
	require.EqualError(t, r.Receive(1), "data message 6 when credit ends at 5")
	require.Equal(t, uint64(68), r.Received())
}

func TestReceiverConsumesForwardsAndOnlyWhatCame(t *testing.T) {
	r := NewReceiver(64, 4)
	require.NoError(t, r.Receive(10))
	r.Consume(0)
	r.Consume(5)
	require.PanicsWithValue(t, "credit: consumed up to 4 after 5, with 10 received", func() { r.Consume(4) })
	require.PanicsWithValue(t, "credit: consumed up to 11 after 5, with 10 received", func() { r.Consume(11) })
	require.Panics(t, func() { r.Consume(math.MaxUint64) })
	r.Consume(10)
}

func TestCreditIsDueAtAQuarterOfEither(t *testing.T) {
	r := NewReceiver(64, 16)
	require.False(t, r.Due())
	require.NoError(t, r.Receive(40))
	r.Consume(15)
	require.False(t, r.Due(), "15 of 64 bytes")
	r.Consume(16)
	require.True(t, r.Due(), "16 of 64 bytes")

	consumed, reposted := r.Advertise()
	require.Equal(t, []uint64{16, 1}, []uint64{consumed, reposted})
	require.False(t, r.Due())
	r.Consume(40)
	require.False(t, r.Due(), "one is not completed")
	r.Completed()
	require.True(t, r.Due())
	consumed, reposted = r.Advertise()
	require.Equal(t, []uint64{40, 1}, []uint64{consumed, reposted})
	r.Completed()

	for range 3 {
		require.NoError(t, r.Receive(1))
	}
	require.False(t, r.Due(), "3 of 16 messages")
	require.NoError(t, r.Receive(1))
	require.True(t, r.Due(), "4 of 16 messages, none of them read")
	consumed, reposted = r.Advertise()
	require.Equal(t, []uint64{40, 5}, []uint64{consumed, reposted})
}

func TestSlotsKeepRoomForControlMessages(t *testing.T) {
	q := NewSlots(ControlSends + 2)
	for n := range uint64(2) {
		require.True(t, q.MaySend())
		require.Equal(t, n, q.Post())
	}
	require.False(t, q.MaySend())
	for n := range uint64(ControlSends) {
		require.Equal(t, n+2, q.Post())
	}
	require.Equal(t, ControlSends+2, q.Outstanding())
	require.PanicsWithValue(t, "credit: more than 7 work requests outstanding", func() { q.Post() })

	q.Complete(2) // and with it those before
	require.Equal(t, 4, q.Outstanding())
	require.False(t, q.MaySend())
	require.PanicsWithValue(t, "credit: completion of work request 2, outside 3 to 7", func() { q.Complete(2) })
	require.PanicsWithValue(t, "credit: completion of work request 7, outside 3 to 7", func() { q.Complete(7) })
	require.Panics(t, func() { q.Complete(math.MaxUint64) })
	q.Complete(5)
	require.True(t, q.MaySend())
	q.Complete(6)
	require.Zero(t, q.Outstanding())
	require.Panics(t, func() { q.Complete(7) })
}

func TestSlotsKnowWhichCompletionsWillCome(t *testing.T) {
	q := NewSlots(16)
	require.True(t, q.Completed(0))
	require.Zero(t, q.Unsignaled())
	q.Post()
	q.Post()
	require.Equal(t, 2, q.Unsignaled(), "unsignaled ones do not complete by themselves")
	q.Post()
	q.Signal()
	require.False(t, q.Completed(3))
	require.Zero(t, q.Unsignaled())
	q.Post()
	require.Equal(t, 1, q.Unsignaled())
	q.Complete(2)
	require.True(t, q.Completed(3))
	require.False(t, q.Completed(4))
	require.Equal(t, 1, q.Unsignaled())
	q.Complete(3) // failures complete unsignaled ones too
	require.True(t, q.Completed(4))
	require.Zero(t, q.Unsignaled())
}

func TestAQueueWithoutRoomForDataSendsNone(t *testing.T) {
	for _, depth := range []int{0, 1, ControlSends} {
		q := NewSlots(depth)
		require.False(t, q.MaySend())
	}
}

// FuzzSender says anything at all to a Sender in the peer's name. It must stay
// within what was granted, whatever it believes.
func FuzzSender(f *testing.F) {
	f.Add(uint8(4), uint8(4), uint64(3), uint64(1), uint64(0), uint64(0), []byte{9, 1, 1, 1, 1, 9})
	f.Add(uint8(1), uint8(1), uint64(math.MaxUint64), uint64(1), uint64(4), uint64(math.MaxUint64), []byte{3, 1, 3, 1})
	f.Fuzz(func(t *testing.T, ring, receives uint8, c1, m1, c2, m2 uint64, sizes []byte) {
		s := NewSender(4*int(ring), 4*int(receives))
		var consumed, reposted uint64
		for i, n := range sizes {
			s.Accept(min(int(n), s.Space()))
			if s.MaySend() && s.Pending() > 0 {
				s.Send(1 + int(n)%s.Pending())
			}
			for _, c := range [][2]uint64{{c1, m1}, {c2, m2}, {consumed + uint64(n%3), reposted + uint64(i%2)}} {
				good := c[0] >= consumed && c[0] <= s.Position() && c[1] >= reposted && c[1] <= s.messages
				require.Equal(t, good, s.Credit(c[0], c[1]) == nil)
				if good {
					consumed, reposted = c[0], c[1]
				}
			}
			require.LessOrEqual(t, s.Accepted(), consumed+4*uint64(ring))
			require.LessOrEqual(t, s.messages, reposted+4*uint64(receives))
			require.Equal(t, int(consumed)+4*int(ring)-int(s.Accepted()), s.Space())
		}
	})
}

// FuzzReceiver sends messages of any size to a Receiver. It must take those that
// it has granted and no others, and never owe a CREDIT for less than a quarter.
func FuzzReceiver(f *testing.F) {
	f.Add(uint8(4), uint8(4), []byte{9, 1, 1, 1, 1, 9}, int64(-1))
	f.Add(uint8(255), uint8(1), []byte{255, 0, 255, 0, 255, 255, 0}, int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, ring, receives uint8, sizes []byte, odd int64) {
		size, slots := 4*uint64(max(ring, 1)), 4*uint64(max(receives, 1))
		r := NewReceiver(int(size), int(slots))
		var received, messages, consumed, toldBytes, toldMessages uint64
		for i, b := range sizes {
			n := int(b)
			if i%7 == 6 {
				n = int(odd)
			}
			good := n > 0 && uint64(n) <= toldBytes+size-received && messages < toldMessages+slots
			require.Equal(t, good, r.Receive(n) == nil)
			if good {
				received += uint64(n)
				messages++
			}
			consumed += uint64(b) % (received - consumed + 1)
			r.Consume(consumed)
			require.Equal(t, received, r.Received())
			if r.Due() {
				require.True(t, consumed-toldBytes >= size/4 || messages-toldMessages >= slots/4)
				toldBytes, toldMessages = r.Advertise()
				require.Equal(t, []uint64{consumed, messages}, []uint64{toldBytes, toldMessages})
				require.False(t, r.Due())
				r.Completed()
			}
			require.False(t, r.Due())
		}
	})
}
