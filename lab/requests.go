package lab

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

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

// openRequestLog makes the log of a new run, or goes on with that of one that is
// resumed: finished says which of its rounds stay.
func openRequestLog(dir string, finished func(cell string, block int) bool) (*requestLog, error) {
	fd, err := unix.MemfdCreate("berth-requests", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create request log: %w", os.NewSyscallError("memfd_create", err))
	}
	l := &requestLog{round: os.NewFile(uintptr(fd), "requests of a round")}
	if err := l.create(filepath.Join(dir, RequestsFile), finished); err != nil {
		return nil, errors.Join(fmt.Errorf("create request log: %w", err), l.round.Close())
	}
	return l, nil
}

// create opens the file. What is in the folder of a new run by now is another user's,
// and could be a link; that of a run that is resumed is written anew, as a run that was
// killed leaves no end, and lines of a round that has no result.
func (l *requestLog) create(path string, finished func(cell string, block int) bool) (err error) {
	if finished == nil {
		if l.out, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
			l.zip = gzip.NewWriter(l.out)
		}
		return err
	}
	old, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	if l.out, err = os.CreateTemp(filepath.Dir(path), "."+RequestsFile+".*"); err != nil {
		return err
	}
	l.zip = gzip.NewWriter(l.out)
	err = l.keep(old, finished)
	if err == nil {
		err = errors.Join(l.zip.Flush(), l.out.Chmod(0o644), os.Rename(l.out.Name(), path))
	}
	if err != nil {
		err = errors.Join(err, l.out.Close(), os.Remove(l.out.Name()))
	}
	return err
}

// keep copies the lines of finished rounds.
func (l *requestLog) keep(old io.Reader, finished func(cell string, block int) bool) error {
	unzipped, err := gzip.NewReader(old)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(unzipped)
	for lines.Scan() {
		fields := append(strings.SplitN(lines.Text(), ",", 3), "")
		if block, err := strconv.Atoi(fields[0]); l.headed && (err != nil || !finished(fields[1], block)) {
			continue
		}
		l.headed = true
		if _, err := fmt.Fprintln(l.zip, lines.Text()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return nil
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

// Request is one request of a round's window.
type Request struct {
	// Due is when it should have been sent, Seen when the generator got round to
	// it, Done when it was answered, or failed, from the start of the window. Seen
	// and Done are -1 if that never came.
	Due, Seen, Done time.Duration
	Failed          bool
}

// Requests are those of the last round, in the order in which they were due.
func (b *Testbed) Requests() ([]Request, error) {
	file := b.requests.file()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	requests, err := parseRequests(file)
	if err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	return requests, nil
}

// parseRequests reads what the generator wrote: seq, due, seen, sent, done, error.
func parseRequests(r io.Reader) ([]Request, error) {
	lines := csv.NewReader(r)
	lines.FieldsPerRecord, lines.ReuseRecord = 6, true
	var all []Request
	for {
		fields, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if line, _ := lines.FieldPos(0); line == 1 {
			continue // the header
		}
		instant := func(text string) time.Duration {
			if text == "" {
				return -1
			}
			ns, wrong := strconv.ParseInt(text, 10, 64)
			err = errors.Join(err, wrong)
			return time.Duration(ns)
		}
		all = append(all, Request{instant(fields[1]), instant(fields[2]), instant(fields[4]), fields[5] != ""})
		if err != nil {
			return nil, err
		}
	}
}
