module github.com/floe-fs/floe/crates/capi/examples/go

go 1.21
