package main

/*
#cgo pkg-config: floe
#include <floe.h>
#include <stdlib.h>

int32_t addEntry(floe_entry *entry, void *context);
*/
import "C"

import (
	"errors"
	"io"
	"runtime"
	"runtime/cgo"
	"strings"
	"unsafe"
)

// Image is an EROFS or SquashFS image. Many goroutines may use it at once.
type Image struct{ image *C.floe_image }

// File is a file of an image. It is an io.ReaderAt.
type File struct {
	image *Image
	inode C.uint64_t
}

// Entry is an entry of a directory.
type Entry struct {
	Name string
	// Type is the type as in the upper bits of st_mode.
	Type uint32
}

// call runs a call to the library, and returns the text of its error if it fails. The library keeps that text for the thread, so
// the goroutine stays on its thread meanwhile.
func call(isDone func() bool) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if isDone() {
		return nil
	}
	return errors.New(C.GoString(C.floe_error_text()))
}

// Open opens the image in a file, or at a URL.
func Open(location string) (*Image, error) {
	name := C.CString(location)
	defer C.free(unsafe.Pointer(name))
	image := &Image{}
	err := call(func() bool {
		if strings.Contains(location, "://") {
			image.image = C.floe_open_url(name, nil)
		} else {
			image.image = C.floe_open(name, nil)
		}
		return image.image != nil
	})
	return image, err
}

// Close closes the image.
func (image *Image) Close() { C.floe_close(image.image) }

// File finds a file.
func (image *Image) File(path string) (*File, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	file := &File{image: image}
	err := call(func() bool { return C.floe_lookup(image.image, name, 1, &file.inode) == 0 })
	return file, err
}

// ReadDir lists a directory.
func (image *Image) ReadDir(path string) ([]Entry, error) {
	directory, err := image.File(path)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	handle := cgo.NewHandle(&entries)
	defer handle.Delete()
	err = call(func() bool {
		callback := C.floe_entry_callback(C.addEntry)
		return C.floe_readdir(image.image, directory.inode, callback, unsafe.Pointer(&handle)) == 0
	})
	return entries, err
}

//export addEntry
func addEntry(entry *C.floe_entry, context unsafe.Pointer) C.int32_t {
	entries := (*cgo.Handle)(context).Value().(*[]Entry)
	name := C.GoStringN(entry.name, C.int(entry.name_len))
	*entries = append(*entries, Entry{Name: name, Type: uint32(entry.type_bits)})
	return 0
}

// ReadAt implements io.ReaderAt.
func (file *File) ReadAt(buffer []byte, offset int64) (int, error) {
	if len(buffer) == 0 {
		return 0, nil
	}
	var count C.ptrdiff_t
	err := call(func() bool {
		start := unsafe.Pointer(&buffer[0])
		count = C.floe_pread(file.image.image, file.inode, start, C.size_t(len(buffer)), C.uint64_t(offset))
		return count >= 0
	})
	if err != nil {
		return 0, err
	}
	if int(count) < len(buffer) {
		return int(count), io.EOF
	}
	return int(count), nil
}
