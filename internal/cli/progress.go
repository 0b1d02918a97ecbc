package cli

import (
	"fmt"
	"io"
	"time"

	"berth.dev/berth/lab"
)

// statusLine is a line that a terminal shows and rewrites.
type statusLine struct {
	w     io.Writer
	tty   bool
	shown bool // something is on it
}

// rewrite shows another text, unless this is no terminal.
func (l *statusLine) rewrite(text string) {
	if l.tty {
		fmt.Fprintf(l.w, "\r\x1b[K%s", text)
		l.shown = true
	}
}

// finish leaves the line behind.
func (l *statusLine) finish() {
	if l.shown {
		l.rewrite("")
	}
}

// progressLine shows the progress of a run: one line rewritten on a terminal, a
// line per block elsewhere. It writes at most once a round: redraws are noise
// to the measurement.
type progressLine struct {
	statusLine
	block int
}

func newProgressLine(w io.Writer) *progressLine {
	return &progressLine{statusLine: statusLine{w: w, tty: isTerminal(w)}}
}

func (l *progressLine) show(p lab.Progress) {
	l.rewrite(progressText(p))
	if l.tty || p.Phase == "measure" && p.Block == l.block && p.Round < p.Rounds {
		return
	}
	l.block = p.Block
	fmt.Fprintln(l.w, progressText(p))
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
