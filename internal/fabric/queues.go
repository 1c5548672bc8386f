package fabric

import (
	"math"
	"math/bits"
)

// MaxInline is how many bytes a send has at most for inline data, in memory that is registered.
const MaxInline = 220

// How many bytes an entry takes in the queues of mlx5, whose lengths are powers of two: a
// send with that much inline, a receive of one piece, a completion (mlx5_calc_send_wqe and
// its neighbours in rdma-core).
const (
	sendSlot       = 512
	recvSlot       = 16
	completionSlot = 64
)

// PageSize is the unit in which memory is registered, in bytes.
const PageSize = 4 << 10

// DeviceQueues is how many bytes of locked memory a queue pair and its completion queue
// take, with what is copied to them. They are counted as mlx5 lays them out. For its cards (NVIDIA's ConnectX-4 and
// later) this is an upper bound; other drivers may take somewhat more, or less, or none.
func DeviceQueues(sends, receives int) int {
	return Pages(sends*MaxInline) +
		Pages(powerOfTwo(sends)*sendSlot) +
		Pages(powerOfTwo(receives)*recvSlot) +
		Pages(powerOfTwo(sends+receives+1)*completionSlot) +
		PageSize // doorbells
}

// Pages is n rounded up to whole pages, as many as an int can count at most.
func Pages(n int) int { return (min(n, math.MaxInt-PageSize+1) + PageSize - 1) / PageSize * PageSize }

// powerOfTwo is the least power of two that is not less than n.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }
