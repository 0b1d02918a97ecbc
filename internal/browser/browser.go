// Package browser loads pages in a headless Chromium of this host, for tests.
package browser

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Path is a browser of this host; the test is skipped without one.
func Path(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("there is no chromium, chromium-browser or google-chrome to load the page with")
	return ""
}

// Open loads an address and returns the document as it then is, and what the browser's console
// said. Timers of the page have five seconds of its own time; what it loads may take five minutes.
func Open(t testing.TB, address string) (document, console string) {
	t.Helper()
	out, stderr := load(t, address, "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom")
	for line := range strings.Lines(stderr) {
		if strings.Contains(line, "CONSOLE") {
			console += line
		}
	}
	return out, console
}

// Print loads an address and returns it as printed, as a PDF.
func Print(t testing.TB, address string) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "printed.pdf")
	load(t, address, "--no-pdf-header-footer", "--print-to-pdf="+name)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// load runs the browser until it has done with an address what the flags ask for.
func load(t testing.TB, address string, flags ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir()}, flags...)
	cmd := exec.CommandContext(ctx, Path(t), append(args, address)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("chromium: %v\n%s", err, errs.String())
	}
	return out.String(), errs.String()
}
