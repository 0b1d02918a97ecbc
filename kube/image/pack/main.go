// Command pack writes the image of a static program as an OCI archive (make image):
//
//	go run ./image/pack -name REGISTRY/NAME:TAG -o FILE PROGRAM
//
// It prints the image's digest. The same program gives the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/image"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, args []string) error {
	flags := flag.NewFlagSet("pack", flag.ContinueOnError)
	name := flags.String("name", "", "what the image is called, `REGISTRY/NAME:TAG`")
	to := flags.String("o", "", "the `file` to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *to == "" {
		return errors.New("usage: pack -name REGISTRY/NAME:TAG -o FILE PROGRAM")
	}
	program, err := os.ReadFile(flags.Arg(0))
	if err != nil {
		return err
	}
	m, err := image.Of(program, filepath.Base(flags.Arg(0)))
	if err != nil {
		return err
	}
	write := func(w io.Writer) error { return m.WriteArchive(w, *name) }
	if err := kernel.ReplaceFile(*to, write); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, m.Manifest.Digest())
	return err
}
