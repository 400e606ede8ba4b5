// Writes a file of an image to standard output: read IMAGE PATH
package main

/*
#cgo pkg-config: floe
#include <floe.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"unsafe"
)

// Image is an EROFS or SquashFS image.
type Image struct{ image *C.floe_image }

// File is a file of an image. It is an io.ReaderAt.
type File struct {
	image *Image
	inode C.uint64_t
}

// lastError returns the last error of this thread. The caller must have locked the goroutine to its thread.
func lastError() error { return errors.New(C.GoString(C.floe_error_text())) }

// Open opens the image in a file.
func Open(path string) (*Image, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	image := C.floe_open(name, nil)
	if image == nil {
		return nil, lastError()
	}
	return &Image{image}, nil
}

// Close closes the image.
func (image *Image) Close() { C.floe_close(image.image) }

// File finds a file.
func (image *Image) File(path string) (*File, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	file := &File{image: image}
	if C.floe_lookup(image.image, name, 1, &file.inode) != 0 {
		return nil, lastError()
	}
	return file, nil
}

// ReadAt implements io.ReaderAt.
func (file *File) ReadAt(buffer []byte, offset int64) (int, error) {
	if len(buffer) == 0 {
		return 0, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := unsafe.Pointer(&buffer[0])
	n := C.floe_pread(file.image.image, file.inode, start, C.size_t(len(buffer)), C.uint64_t(offset))
	if n < 0 {
		return 0, lastError()
	}
	if int(n) < len(buffer) {
		return int(n), io.EOF
	}
	return int(n), nil
}

func run(arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("usage: read IMAGE PATH")
	}
	image, err := Open(arguments[0])
	if err != nil {
		return err
	}
	defer image.Close()
	file, err := image.File(arguments[1])
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, io.NewSectionReader(file, 0, 1<<62))
	return err
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
