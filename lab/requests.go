package lab

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// rawFile is how the generator finds the file that requestLog.file lends it: its
// descriptor 3.
const rawFile = "/proc/self/fd/3"

// requestLog gathers the raw requests of all rounds in one compressed CSV.
type requestLog struct {
	out    *os.File
	zip    *gzip.Writer
	round  *os.File // in memory: what the generator writes, one round at a time
	headed bool
}

func createRequestLog(dir string) (*requestLog, error) {
	fd, err := unix.MemfdCreate("berth-requests", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create request log: %w", os.NewSyscallError("memfd_create", err))
	}
	round := os.NewFile(uintptr(fd), "requests of a round")
	out, err := os.Create(filepath.Join(dir, RequestsFile))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create request log: %w", err), round.Close())
	}
	return &requestLog{out: out, zip: gzip.NewWriter(out), round: round}, nil
}

// file is what the generator writes to; it truncates it.
func (l *requestLog) file() *os.File { return l.round }

// add appends the round that the generator has written, each line with its
// block and scenario in front. What was added survives a kill.
func (l *requestLog) add(block int, scenario string) error {
	err := l.copy(block, scenario)
	if err == nil {
		err = l.zip.Flush()
	}
	if err != nil {
		return fmt.Errorf("request log: %w", err)
	}
	return nil
}

func (l *requestLog) copy(block int, scenario string) error {
	if _, err := l.round.Seek(0, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewScanner(l.round)
	for first := true; lines.Scan(); first = false {
		switch {
		case !first:
			if _, err := fmt.Fprintf(l.zip, "%d,%s,%s\n", block, scenario, lines.Bytes()); err != nil {
				return err
			}
		case !l.headed:
			l.headed = true
			if _, err := fmt.Fprintf(l.zip, "block,scenario,%s\n", lines.Bytes()); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

func (l *requestLog) close() error {
	if err := errors.Join(l.zip.Close(), l.out.Close(), l.round.Close()); err != nil {
		return fmt.Errorf("request log: %w", err)
	}
	return nil
}
