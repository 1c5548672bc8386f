module github.com/ringnet/ringnet/tools/softroce

go 1.25.0

require (
	github.com/cavaliergopher/cpio v1.0.1
	github.com/gofrs/flock v0.12.1
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.47.0
)

require github.com/vishvananda/netns v0.0.5 // indirect
