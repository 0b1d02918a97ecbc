package load

import "fmt"

// Exec is the protocol of a service that runs a command of a user's for each request
// (program.ServeExec). A request is the number that stands in the command, on a line; the
// answer is a line, "ok" or why the run failed. The command itself is never sent.
const Exec = "exec"

// Nothing, in place of a number, has that service run a command that does nothing: what
// starting a process costs. Output asks for what one run of the command prints.
const (
	Nothing = "nothing"
	Output  = "output"
)

type execProtocol struct{}

func (execProtocol) encode(_ Target, ask string) ([]byte, error) {
	if ask != Nothing && !isNumber([]byte(ask)) {
		return nil, fmt.Errorf("request %q: want a number, or a range such as {0-999}", ask)
	}
	return []byte(ask + "\n"), nil
}

func (execProtocol) greet(Target) greeting { return nil }

func (execProtocol) reader() reader { return &execReader{line: newLine(keepOfLine)} }

// execReader reads one response: a line.
type execReader struct{ line line }

func (r *execReader) reset() { r.line.reset() }

func (r *execReader) read(p []byte) (bool, error) {
	rest, done := r.line.take(p)
	if len(rest) > 0 {
		return false, errExcessReply
	}
	return done, nil
}

func (r *execReader) outcome() (failure []byte, closes bool) {
	if string(r.line.kept) == "ok" {
		return nil, false
	}
	if len(r.line.kept) == 0 {
		return []byte("it failed"), false
	}
	return r.line.kept, false
}

// Numbered is a text with a number in place of its range.
func Numbered(text, number string) string { return numbers.ReplaceAllLiteralString(text, number) }

// RangeIn is the range of numbers within a text, as it stands there; "0" where there is none.
func RangeIn(text string) (string, error) {
	if _, _, err := rangeOf(text); err != nil {
		return "", err
	}
	if found := numbers.FindString(text); found != "" {
		return found, nil
	}
	return "0", nil
}
