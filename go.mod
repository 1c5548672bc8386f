module github.com/ringnet/ringnet

go 1.25.0

require (
	github.com/stretchr/testify v1.12.1 // indirect
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
