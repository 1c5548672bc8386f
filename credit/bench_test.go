package credit_test

import (
	"fmt"
	"testing"

	"github.com/ringnet/ringnet/credit"
)

// BenchmarkMessage is all of the ledger that a message needs on both sides, the
// CREDITs that come of it included.
func BenchmarkMessage(b *testing.B) {
	for _, size := range []int{64, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			const ring, receives = 256 << 10, 256
			sender, receiver := credit.NewSender(ring, receives), credit.NewReceiver(ring, receives)
			slots := credit.NewSlots(128)
			credits := 0
			b.ReportAllocs()
			for b.Loop() {
				if sender.Space() < size || !sender.MaySend() || !slots.MaySend() {
					b.Fatal("nothing may be sent")
				}
				sender.Accept(size)
				sender.Send(size)
				request := slots.Post()
				slots.Signal()
				if err := receiver.Receive(size); err != nil {
					b.Fatal(err)
				}
				slots.Complete(request)
				receiver.Consume(receiver.Received())
				if receiver.Due() {
					credits++
					if err := sender.Credit(receiver.Advertise()); err != nil {
						b.Fatal(err)
					}
					receiver.Completed()
				}
			}
			b.ReportMetric(float64(credits)/float64(b.N), "credits/op")
		})
	}
}
