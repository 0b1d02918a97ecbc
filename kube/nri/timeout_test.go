package nri

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"berth.dev/berth/internal/fork"
)

// timeoutEnv is set where this process is for TestRuntimeTimeout alone: its runtimes wait requestTimeout for an
// answer.
const (
	timeoutEnv     = "BERTH_TEST_NRI_TIMEOUT"
	requestTimeout = time.Second
)

// A decision that takes longer than the runtime waits, and less than its budget: the runtime drops the plugin
// and creates the container without it, though it requires the plugin. The plugin comes back, adopts the
// container with the place that it had decided, and takes the others off its CPUs.
func TestRuntimeTimeout(t *testing.T) {
	t.Parallel()
	if os.Getenv(timeoutEnv) == "" { // how long it waits is a setting of a whole process
		cmd := exec.Command(os.Args[0], "-test.run=^TestRuntimeTimeout$", "-test.timeout=5m")
		var out bytes.Buffer
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), timeoutEnv+"=1"), &out, &out
		err := fork.Start(cmd)
		if err == nil {
			err = cmd.Wait()
		}
		if err != nil {
			t.Errorf("%v\n%s", err, &out)
		}
		return
	}
	opt, heard := options(t, "1s1n4c2t")
	busy := newBusyNode(&opt)
	n := &node{runtime: newRuntime(t, opt.Node.Machine.Online), heard: heard}
	n.required, opt.Effective = []string{"berth"}, n.effective
	n.start()
	n.run(open(t, opt))
	web, db, next := pod("web", nil), pod("db", exclusive), pod("next", exclusive)
	must(t, n.create(web, container(web, "a", 100), 0))
	busy.armed.Store(true)
	must(t, n.create(db, container(db, "a", 2000), 2))
	if got := n.cpus("db.a"); !got.IsEmpty() {
		t.Errorf("created without an answer it has CPUs %s", got)
	}
	eventually(t, "the plugin is back, and knows that its answer did not count", func() bool {
		n.p.table.mu.Lock()
		defer n.p.table.mu.Unlock()
		s := n.p.table.containers["db.a"]
		return s != nil && !s.fresh
	})
	close(busy.ready)
	n.connected()
	n.asBooks("adopted")
	if own := n.cpus("db.a"); own.Len() != 2 || n.cpus("web.a") != n.online.Minus(own) {
		t.Errorf("adopted it has CPUs %s, beside %s", own, n.cpus("web.a"))
	}
	must(t, n.create(next, container(next, "a", 2000), 2))
	n.asBooks("at the end")
	if lost, late := len(heard.of(Lost)), slices.Concat(heard.kinds(Late), heard.kinds(Drifted)); lost == 0 || len(late) > 0 {
		t.Errorf("lost %d times, told %q", lost, late)
	}
}
