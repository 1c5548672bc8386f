module github.com/ringnet/ringnet/examples

go 1.26.0

require (
	github.com/ringnet/ringnet v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/libp2p/go-buffer-pool v0.1.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/ringnet/ringnet => ../
