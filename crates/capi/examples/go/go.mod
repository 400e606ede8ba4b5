module floe-image-example

go 1.21
