package credit_test

import (
	"fmt"
	"testing"

	"github.com/ringnet/ringnet/credit"
)

// BenchmarkMessage is all of the two ledgers that a message needs on both sides,
// the credits that come of it included.
func BenchmarkMessage(b *testing.B) {
	for _, size := range []int{64, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			const ring, receives = 256 << 10, 256
			near, far := credit.NewLink(receives, receives), credit.NewLink(receives, receives)
			sender, receiver := openStream(b, ring)
			slots := credit.NewSlots(128, credit.LinkControlSends)
			credits := 0
			b.ReportAllocs()
			for b.Loop() {
				if sender.Space() < size || !near.MaySendData() || !slots.MaySend() {
					b.Fatal("nothing may be sent")
				}
				sender.Accept(size)
				sender.Send(size)
				near.SendData()
				request := slots.Post()
				slots.Signal()
				must(b, far.ReceiveData())
				must(b, receiver.Receive(size, false))
				slots.Complete(request)
				receiver.Consume(receiver.Received())
				if receiver.Due() == credit.CreditRecord {
					credits++
					must(b, near.ReceiveRecords(far.SendRecords()))
					must(b, sender.ReceiveRecord(credit.CreditRecord, receiver.SendRecord(credit.CreditRecord)))
				}
				if far.CreditDue() {
					credits++
					must(b, near.ReceiveCredit(far.SendCredit()))
				}
				if near.CreditDue() {
					credits++
					must(b, far.ReceiveCredit(near.SendCredit()))
				}
			}
			b.ReportMetric(float64(credits)/float64(b.N), "credits/op")
		})
	}
}

// openStream returns both sides of an open stream.
func openStream(b *testing.B, ring int) (dialer, answerer credit.Stream) {
	dialer = credit.NewStream(ring)
	answerer = credit.AcceptStream(ring, int(dialer.SendRecord(credit.OpenRecord)))
	must(b, dialer.ReceiveRecord(credit.AcceptRecord, answerer.SendRecord(credit.AcceptRecord)))
	return dialer, answerer
}

func must(b *testing.B, err error) {
	if err != nil {
		b.Fatal(err)
	}
}
