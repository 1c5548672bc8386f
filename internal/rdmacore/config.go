package rdmacore

// PortSpace is a set of ports of the connection manager: those of one are apart from those of
// another.
type PortSpace uint32

// The port spaces, by their numbers in rdma_cma.h.
const (
	TCP PortSpace = 0x0106 // connections
	UDP PortSpace = 0x0111 // requests for queue pairs of type UD: the connection manager's SIDR
)

// Config says for what the connection manager is used.
type Config struct {
	Space PortSpace

	// TrafficClass is what packets are marked with, as ringnet.Config has it: 1 to 255,
	// negative for a class of 0; 0 means the system's choice.
	TrafficClass int

	// Vectors are the completion vectors whose interrupts announce completions, as numa.ParseList has
	// them. A device that has none of them uses those near it.
	Vectors string

	// Inline is how much inline data a queue pair has at most, in bytes; negative: none. 0 leaves it
	// to RINGNET_INLINE, and to what the device is used without.
	Inline int
}

// class is the byte to mark packets with, if there is one.
func (c Config) class() (class uint8, ok bool) {
	return uint8(max(c.TrafficClass, 0)), c.TrafficClass != 0
}
