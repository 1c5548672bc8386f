package verbs

// Config has the options of a fabric.
type Config struct {
	// TrafficClass is what the packets of connections are marked with, as
	// ringnet.Config has it.
	TrafficClass int
}

// class is the byte to mark packets with, if there is one.
func (c Config) class() (class uint8, ok bool) {
	return uint8(max(c.TrafficClass, 0)), c.TrafficClass != 0
}
