// Lists an image, or writes one of its files to standard output: read IMAGE [PATH]. The image may be a URL.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

func run(arguments []string) error {
	if len(arguments) < 1 || len(arguments) > 2 {
		return errors.New("usage: read IMAGE [PATH]")
	}
	image, err := Open(arguments[0])
	if err != nil {
		return err
	}
	defer image.Close()
	if len(arguments) == 1 {
		entries, err := image.ReadDir("/")
		for _, entry := range entries {
			fmt.Printf("%6o %s\n", entry.Type, entry.Name)
		}
		return err
	}
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
