package attack

import (
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/walkthrough"
)

// serveInTurns is a service on the loopback interface that works for some milliseconds and
// sleeps for some.
var serveInTurns = newTrick("serve-in-turns", func([]string) error {
	go func() {
		for {
			for began := time.Now(); time.Since(began) < 2*time.Millisecond; {
			}
			time.Sleep(4 * time.Millisecond)
		}
	}()
	return http.ListenAndServe("127.0.0.1:80", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
})

// TestPages does what README and quick-starts tell a reader to do on a host without systemd,
// page by page in the order of their lines, and compares what is printed in shape. The scene
// is set: programs of the pages' names that are in no group of their own, as in a container.
func TestPages(t *testing.T) {
	boxed(t, func(b *box) {
		_, here, _, _ := runtime.Caller(0)
		top := filepath.Dir(filepath.Dir(filepath.Dir(here)))
		pages, err := filepath.Glob(top + "/docs/quickstart-*.md")
		if err != nil || len(pages) == 0 {
			b.Skipf("the pages are not at %s: %v", top, err)
		}
		for name, program := range map[string]string{"nginx": attack, "stress-ng": "/bin/sh", "stress-ng-cpu": "/bin/sh"} {
			if err := os.Symlink(program, "/opt/"+name); err != nil {
				b.Fatal(err)
			}
		}
		b.start(root, append([]string{"/opt/nginx"}, serveInTurns.with()[1:]...)...)
		hog := b.start(root, "/opt/stress-ng", "-c", "for i in 1 2 3 4 5 6 7 8; do /opt/stress-ng-cpu -c 'while :; do :; done' & done; wait")
		if err := os.Setenv("PATH", "/opt:"+os.Getenv("PATH")); err != nil {
			b.Fatal(err)
		}
		tried := 0
		for _, name := range append(pages, top+"/README.md") {
			steps, err := walkthrough.Steps(b.read(name))
			if err != nil {
				b.Fatalf("%s: %v", name, err)
			}
			for _, s := range steps {
				if !s.On("container") {
					continue
				}
				tried++
				out, code := b.run(root, "sh", "-c", strings.ReplaceAll(s.Command, "sudo ", ""))
				b.Logf("$ %s\n%s", s.Command, out)
				if code != 0 && code != 3 { // of a finding
					b.Fatalf("%s: line %d: %s: exit status %d\n%s", name, s.Line, s.Command, code, out)
				}
				if err := s.Compare(out); err != nil {
					b.Errorf("%s: %v", name, err)
				}
			}
		}
		if tried == 0 {
			b.Error("no command was tried")
		}
		if out := b.must(berth, "restore"); out != "nothing to restore\n" {
			b.Errorf("left behind: %s", out)
		}
		select {
		case <-hog.done:
			b.Errorf("the hog has ended:\n%s", hog.out)
		default:
		}
	})
}
