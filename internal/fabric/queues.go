package fabric

import (
	"math"
	"math/bits"

	"github.com/ringnet/ringnet/internal/provider"
)

// How many bytes an entry takes in the queues of mlx5, whose lengths are powers of two: a
// write or a datagram with that much inline, a receive of one piece, a completion
// (mlx5_calc_send_wqe and its neighbours in rdma-core).
const (
	writeSlot      = 256
	datagramSlot   = 512
	recvSlot       = 16
	completionSlot = 64
)

// PageSize is the unit in which memory is registered, in bytes.
const PageSize = 4 << 10

// DeviceQueues is how many bytes of locked memory a queue pair for writes and its completion queue
// take, with what is copied to them. They are counted as mlx5 lays them out. For its cards (NVIDIA's ConnectX-4 and
// later) this is an upper bound, from rdma-core v24 on; other drivers may take somewhat more, or less, or none.
func DeviceQueues(sends, receives int) int { return deviceQueues(sends, receives, writeSlot) }

// DatagramQueues is DeviceQueues for a queue pair that sends datagrams.
func DatagramQueues(sends, receives int) int { return deviceQueues(sends, receives, datagramSlot) }

func deviceQueues(sends, receives, sendSlot int) int {
	return Pages(sends*provider.MaxInline) +
		Pages(powerOfTwo(sends)*sendSlot) +
		Pages(powerOfTwo(receives)*recvSlot) +
		Pages(powerOfTwo(sends+receives+1)*completionSlot) +
		PageSize // doorbells
}

// Pages is n rounded up to whole pages, as many as an int can count at most.
func Pages(n int) int { return (min(n, math.MaxInt-PageSize+1) + PageSize - 1) / PageSize * PageSize }

// powerOfTwo is the least power of two that is not less than n.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }
