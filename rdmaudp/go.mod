module github.com/ringnet/ringnet/rdmaudp

go 1.26.0

require (
	github.com/ringnet/ringnet v0.0.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/net v0.58.0
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/ringnet/ringnet => ../
