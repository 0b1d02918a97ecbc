package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"berth.dev/berth/lab"
)

// progressLine shows the progress of a run: one line rewritten on a terminal, a
// line per block elsewhere. It writes at most once a round: redraws are noise
// to the measurement.
type progressLine struct {
	w     io.Writer
	tty   bool
	width int // of the text on the line now
	block int
}

func newProgressLine(w io.Writer) *progressLine {
	return &progressLine{w: w, tty: isTerminal(w)}
}

func (l *progressLine) show(p lab.Progress) {
	text := progressText(p)
	if l.tty {
		pad := max(0, l.width-len(text))
		fmt.Fprintf(l.w, "\r%s%s", text, strings.Repeat(" ", pad))
		l.width = len(text)
		return
	}
	if p.Phase == "measure" && p.Block == l.block && p.Round < p.Rounds {
		return
	}
	l.block = p.Block
	fmt.Fprintln(l.w, text)
}

// finish leaves the line behind.
func (l *progressLine) finish() {
	if l.tty && l.width > 0 {
		fmt.Fprintf(l.w, "\r%s\r", strings.Repeat(" ", l.width))
	}
}

func progressText(p lab.Progress) string {
	if p.Phase == "calibrate" {
		return "calibrating: " + p.Scenario
	}
	text := fmt.Sprintf("round %d of %d, block %d of %d", min(p.Round+1, p.Rounds), p.Rounds, p.Block, p.Blocks)
	if p.Scenario != "" {
		text += ": " + p.Scenario
	}
	if p.Left > 0 {
		text += fmt.Sprintf("; %s left", p.Left.Round(time.Second))
	}
	return text
}
