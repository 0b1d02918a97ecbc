package lab

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
)

// requestLog gathers the raw requests of all rounds in one compressed CSV.
type requestLog struct {
	file *os.File
	zip  *gzip.Writer
	temp string // what the generator writes, one round at a time
	head bool
}

func createRequestLog(dir string) (*requestLog, error) {
	f, err := os.Create(filepath.Join(dir, RequestsFile))
	if err != nil {
		return nil, fmt.Errorf("create request log: %w", err)
	}
	return &requestLog{file: f, zip: gzip.NewWriter(f), temp: filepath.Join(dir, ".round.csv")}, nil
}

// next is the path that the generator of the next round writes to.
func (l *requestLog) next() string { return l.temp }

// add appends the round that the generator has written, each line with its
// block and scenario in front.
func (l *requestLog) add(block int, scenario string) error {
	in, err := os.Open(l.temp)
	if err != nil {
		return fmt.Errorf("request log: %w", err)
	}
	defer in.Close()
	lines := bufio.NewScanner(in)
	for first := true; lines.Scan(); first = false {
		switch {
		case !first:
			_, err = fmt.Fprintf(l.zip, "%d,%s,%s\n", block, scenario, lines.Bytes())
		case !l.head:
			l.head = true
			_, err = fmt.Fprintf(l.zip, "block,scenario,%s\n", lines.Bytes())
		}
		if err != nil {
			return fmt.Errorf("request log: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("request log: %w", err)
	}
	return nil
}

func (l *requestLog) close() error {
	err := l.zip.Close()
	if closed := l.file.Close(); err == nil {
		err = closed
	}
	_ = os.Remove(l.temp) // there is none before the first round
	if err != nil {
		return fmt.Errorf("request log: %w", err)
	}
	return nil
}
