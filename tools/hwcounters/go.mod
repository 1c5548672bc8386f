module github.com/ringnet/ringnet/tools/hwcounters

go 1.25.0

require (
	github.com/stretchr/testify v1.12.1
	github.com/vishvananda/netlink v1.3.1
)

require (
	github.com/vishvananda/netns v0.0.5 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
