package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// finish closes the child's input and returns its exit status and the error
// text that it printed.
func (c *child) finish(t *testing.T, stderr *strings.Builder) (status int, text string) {
	t.Helper()
	_ = c.in.Close() // it may have ended
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.cmd.ProcessState.ExitCode(), stderr.String()
}

// startServe starts a generator with its standard error kept.
func startServe(t *testing.T) (*child, *strings.Builder) {
	t.Helper()
	stderr := new(strings.Builder)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(cmd.Environ(), childVariable+"=generator")
	cmd.Stderr = stderr
	return start(t, cmd), stderr
}

func TestServeRefuses(t *testing.T) {
	t.Parallel()
	config, err := json.Marshal(testConfig(listen(t).Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, input, want string }{
		{"not JSON", "hello\n", "load config: invalid character"},
		{"unknown field", `{"url":"x"}` + "\n", `load config: json: unknown field "url"`},
		{"two values", "{}{}\n", "load config: more than one value"},
		{"bad values", "{}\n", "load config: addr: missing; path"},
		{"start missing", string(config) + "\n{}\n", "load start: want"},
		{"start not JSON", string(config) + "\nnow\n", "load start: invalid character"},
		{"start is no number", string(config) + "\n" + `{"start":"now"}` + "\n", "load start: json:"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			generator, stderr := startServe(t)
			if _, err := io.WriteString(generator.in, test.input); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(generator.out); err != nil {
				t.Fatal(err)
			}
			status, text := generator.finish(t, stderr)
			if status != 1 || !strings.HasPrefix(text, test.want) || strings.Count(text, "\n") != 1 {
				t.Errorf("exit status %d, %q; want 1 and one line %q", status, text, test.want)
			}
		})
	}
}

// The end of the input ends the generator, whatever it is doing.
func TestServeEndsWithItsInput(t *testing.T) {
	t.Parallel()
	config := testConfig(serve(t, good))
	config.Window, config.Grace = time.Hour, time.Hour
	config.Rate = 10
	for said := range 3 {
		t.Run(fmt.Sprintf("after %d lines", said), func(t *testing.T) {
			t.Parallel()
			generator, stderr := startServe(t)
			if said > 0 {
				var ready struct{ Ready bool }
				generator.say(t, config)
				generator.hear(t, &ready)
			}
			if said > 1 {
				generator.say(t, map[string]int64{"start": newClock().now()})
			}
			wantStatus, wantText := 3, "" // those of gone
			if said == 0 {
				wantStatus, wantText = 1, "load config: parent gone: input ended\n"
			}
			if status, text := generator.finish(t, stderr); status != wantStatus || text != wantText {
				t.Errorf("exit status %d, %q; want %d, %q", status, text, wantStatus, wantText)
			}
		})
	}
}

func TestServeFinishes(t *testing.T) {
	t.Parallel()
	generator, stderr := startServe(t)
	config := testConfig(serve(t, good))
	generator.run(t, config)
	if status, text := generator.finish(t, stderr); status != 0 || text != "" {
		t.Errorf("exit status %d, %q", status, text)
	}
}
