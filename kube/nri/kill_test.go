package nri

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
)

func setOf(ids ...int) cpuset.Set { return cpuset.MustOf(ids...) }

const (
	pluginEnv = "BERTH_TEST_NRI_PLUGIN" // SOCKET:DIR: this process is the plugin
	killsEnv  = "BERTH_NRI_KILLS"       // how many kills; the issue has 200
	killForm  = "2s2n8c2t"
	churns    = 3 // sequences of pods that come and go
)

func TestMain(m *testing.M) {
	if socket, dir, ok := strings.Cut(os.Getenv(pluginEnv), ":"); ok {
		fmt.Fprintln(os.Stderr, servePlugin(socket, dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// servePlugin is the plugin as a process of its own, to be killed.
func servePlugin(socket, dir string) error {
	opt, err := playedOptions(filepath.Join(dir, "played"), killForm)
	if err != nil {
		return err
	}
	opt.Node.Dir = filepath.Join(dir, "state")
	opt.Effective = func(group string) (cpuset.Set, bool) {
		text, err := os.ReadFile(filepath.Join(dir, "kernel", filepath.Base(group)))
		if err != nil || len(text) == 0 { // or it is being written
			return cpuset.Set{}, false
		}
		return cpuset.MustParse(string(text)), true
	}
	p, err := New(context.Background(), opt)
	if err != nil {
		return err
	}
	return p.Run(context.Background(), func() (net.Conn, error) { return net.Dial("unix", socket) })
}

// The plugin is killed at random instants while pods come and go. No exclusive CPU ever has
// two users (runtime.check looks after every update), and once the plugin is back what the
// containers have is what the records say.
func TestKills(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	kills := 5
	if n, err := strconv.Atoi(os.Getenv(killsEnv)); err == nil {
		kills = n
	}
	dir := t.TempDir()
	opt, err := playedOptions(filepath.Join(dir, "played"), killForm)
	must(t, err)
	r := newRuntime(t, opt.Node.Machine.Online)
	r.required, r.files = []string{"berth"}, filepath.Join(dir, "kernel")
	must(t, os.Mkdir(r.files, 0o755))
	r.start()
	ctx, stop := context.WithCancel(context.Background())
	churned := make(chan struct{})
	var made, refused atomic.Int64
	for i := range churns {
		go func() { r.churn(ctx, i, &made, &refused); churned <- struct{}{} }()
	}
	rng := rand.New(rand.NewPCG(1, uint64(kills)))
	run := func() *exec.Cmd {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), pluginEnv+"="+r.socket+":"+dir)
		c.Stderr = os.Stderr
		must(t, c.Start())
		select {
		case <-r.synced:
		case <-time.After(2 * time.Minute):
			t.Fatal("the plugin does not connect")
		}
		return c
	}
	for range kills {
		c := run()
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
		must(t, c.Process.Kill())
		_ = c.Wait()
	}
	last := run()
	eventually(t, "a container for each kill is created", func() bool { return made.Load() >= int64(kills) })
	stop()
	for range churns {
		<-churned
	}
	t.Logf("%d kills; %d containers created, %d creations refused", kills, made.Load(), refused.Load())
	reader, err := agent.NewReader(agent.Options{Root: opt.Node.Root, Dir: filepath.Join(dir, "state"), Machine: opt.Node.Machine})
	must(t, err)
	var wrong []string
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		all, err := reader.List(context.Background())
		must(t, err)
		if wrong = r.differs(all); len(wrong) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, text := range wrong {
		t.Error(text)
	}
	must(t, last.Process.Kill())
	_ = last.Wait()
}

// churn creates and stops containers until ctx ends, and counts creations and refusals.
func (r *runtime) churn(ctx context.Context, of int, made, refused *atomic.Int64) {
	rng := rand.New(rand.NewPCG(7, uint64(of)))
	var there []string
	for i := 0; ctx.Err() == nil; i++ {
		if len(there) > 20/churns || len(there) > 0 && rng.IntN(3) == 0 {
			at := rng.IntN(len(there))
			_ = r.stop(there[at])
			there = append(there[:at], there[at+1:]...)
			continue
		}
		p, own, milli := pod(fmt.Sprintf("k%d-%d", of, i), nil), 0, 100
		if rng.IntN(2) == 0 {
			own, milli, p.Annotations = 2, 2000, exclusive
		}
		if err := r.create(p, container(p, "a", milli), own); err == nil {
			there = append(there, p.Name+".a")
			made.Add(1)
		} else {
			refused.Add(1)
			time.Sleep(time.Millisecond)
		}
	}
}
