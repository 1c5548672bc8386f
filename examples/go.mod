module github.com/ringnet/ringnet/examples

go 1.25.0

require github.com/ringnet/ringnet v0.0.0

require golang.org/x/sys v0.47.0 // indirect

replace github.com/ringnet/ringnet => ../
