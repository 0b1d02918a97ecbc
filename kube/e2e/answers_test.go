package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/kube/e2e/nodekit"
	"berth.dev/berth/lab/stats"
)

// answersEnv is for how long TestAnswers creates containers.
const answersEnv = "BERTH_ANSWERS"

// What the runtime waits for the plugin beside 250 containers, and what the plugin takes of the
// host beside 220: docs/measurements/node.md.
func TestAnswers(t *testing.T) {
	if os.Getenv(answersEnv) == "" {
		t.Skip(answersEnv + " is not set: it takes minutes, and a machine with nothing else to do")
	}
	each, err := time.ParseDuration(os.Getenv(answersEnv))
	if err != nil {
		t.Fatal(err)
	}
	c := theNode(t)
	w := listen(t, filepath.Join(state, "between.sock"), nodekit.NRI)
	args, env := c.plugin.Args, c.plugin.Env
	restart := func(args, env []string) {
		c.plugin.Args, c.plugin.Env = args, env
		if err := c.again(named{"the plugin", c.plugin}, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { restart(args, env) })
	restart(append(slices.Clone(args[:len(args)-1]), w.path), env)
	c.crowd(t, "a", 110)
	time.Sleep(40 * time.Second) // what the start alone needed is given back by then
	for _, scraped := range []string{"never", "every 15 s"} {
		pid := c.plugin.PID()
		cpu, began := cpuTime(t, pid), time.Now()
		for range 4 {
			time.Sleep(15 * time.Second)
			if scraped != "never" {
				scrape(t)
			}
		}
		t.Logf("beside 220 containers at rest, scraped %s: %.2f %% of a CPU, %.1f MB; load %s", scraped, (cpuTime(t, pid)-cpu).Seconds()/time.Since(began).Seconds()*100, float64(resident(t, pid))/1e6, load(t))
	}
	c.crowd(t, "b", 15)
	restart(c.plugin.Args, env)
	time.Sleep(5 * time.Second)
	w.taken()
	cpu, began := cpuTime(t, c.plugin.PID()), time.Now()
	for i := 0; time.Since(began) < each; i++ {
		names := []string{"own", "x", "y", "z"}
		for j, name := range names {
			p := pod(fmt.Sprintf("%s-%d", name, i), burstable("a", 2))
			if name == "own" {
				p = pod(p.Name, guaranteed("a", 1000))
			}
			c.create(t, p)
			names[j] = p.Name
		}
		for _, name := range names {
			if err := within(func() error { return c.runs(name) }); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range names {
			c.remove(t, name)
		}
	}
	t.Logf("beside 250 containers, in %v: %v of CPU time; load %s", time.Since(began).Round(time.Second), cpuTime(t, c.plugin.PID())-cpu, load(t))
	for method, took := range w.taken() {
		slices.Sort(took)
		at := func(rank int) float64 { return float64(took[rank-1].Microseconds()) / 1000 }
		n := len(took)
		t.Logf("  %s: %d calls, most %.2f ms", method, n, at(n))
		for _, p := range []float64{0.5, 0.9, 0.99} {
			low, high := stats.QuantileRanks(n, p, 0.95)
			t.Logf("    p%g %.2f ms, 95 %% interval from rank %d to %d of %d:%s to%s", 100*p, at(int(math.Ceil(p*float64(n)))), low, high, n, ranked(at, low, n), ranked(at, high, n))
		}
		all := make([]string, len(took))
		for i, d := range took {
			all[i] = fmt.Sprintf("%.2f", float64(d.Microseconds())/1000)
		}
		t.Logf("  %s: all, in ms: %s", method, strings.Join(all, " "))
	}
}

// ranked is the figure of a rank, if there is one.
func ranked(at func(int) float64, rank, n int) string {
	if rank < 1 || rank > n {
		return " unknown"
	}
	return fmt.Sprintf(" %.2f ms", at(rank))
}

// scrape reads the plugin's metrics as Prometheus does.
func scrape(t *testing.T) {
	t.Helper()
	answer, err := http.Get("http://127.0.0.1:9750/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if n, err := io.Copy(io.Discard, answer.Body); err != nil || n < 1<<16 {
		t.Fatalf("a scrape has %d bytes: %v", n, err)
	}
}

// crowd runs so many pods of two containers, started at once.
func (c *cluster) crowd(t *testing.T, name string, count int) {
	t.Helper()
	for i := range count {
		c.create(t, needing(pod(fmt.Sprintf("crowd-%s%d", name, i), burstable("a", 2), burstable("b", 2))))
	}
	for i := range count {
		if err := within(func() error { return c.runs(fmt.Sprintf("crowd-%s%d", name, i)) }); err != nil {
			t.Fatal(err)
		}
	}
}

func load(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text))[:2], " ")
}

// wire is between the runtime and the plugin, and notes how long the runtime waits for each answer:
// from when the plugin could have read all of a request to when all of the answer is there.
type wire struct {
	path string

	mu   sync.Mutex
	took map[string][]time.Duration // by method
}

func listen(t *testing.T, path, runtime string) *wire {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	w := &wire{path: path, took: map[string][]time.Duration{}}
	go func() {
		for {
			plugin, err := l.Accept()
			if err != nil {
				return
			}
			r, err := net.Dial("unix", runtime)
			if err != nil {
				plugin.Close()
				continue
			}
			asked := &calls{since: map[uint32]call{}}
			pass := func(to, from net.Conn, each func(message)) {
				_ = copyFrames(to, from, each)
				to.Close()
				from.Close()
			}
			go pass(plugin, r, asked.begin)
			go pass(r, plugin, func(m message) {
				if method, took, ok := asked.end(m); ok {
					w.mu.Lock()
					defer w.mu.Unlock()
					w.took[method] = append(w.took[method], took)
					if method == "CreateContainer" && len(m.body) > manyUpdates {
						method += ", with updates of the others"
						w.took[method] = append(w.took[method], took)
					}
				}
			})
		}
	}()
	return w
}

// manyUpdates is more than an answer has without updates of others, in bytes.
const manyUpdates = 2000

// taken returns what was noted since it was called before.
func (w *wire) taken() map[string][]time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.took
	w.took = map[string][]time.Duration{}
	return all
}

// calls are those of the plugin's service that are not answered yet, by the number of their stream.
type calls struct {
	mu    sync.Mutex
	since map[uint32]call
}

type call struct {
	method string
	at     time.Time
}

// message is one of ttrpc.
type message struct {
	service, stream uint32 // the service is that of the connection's multiplexer
	kind            byte
	body            []byte
}

// Kinds of messages of ttrpc, and the plugin's service (containerd/nri, pkg/net/multiplex).
const (
	request, response = 1, 2
	pluginService     = 1
)

func (a *calls) begin(m message) {
	if m.service != pluginService || m.kind != request {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since[m.stream] = call{methodOf(m.body), time.Now()}
}

func (a *calls) end(m message) (method string, took time.Duration, ok bool) {
	if m.service != pluginService || m.kind != response {
		return "", 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	is, ok := a.since[m.stream]
	delete(a.since, m.stream)
	return is.method, time.Since(is.at), ok
}

// methodOf is the second field of a request (ttrpc.Request): the first is the service.
func methodOf(body []byte) string {
	for _, tag := range []byte{0x0a, 0x12} {
		if len(body) < 2 || body[0] != tag || int(body[1]) > len(body)-2 || body[1] > 127 {
			return "unknown"
		}
		if tag == 0x12 {
			return string(body[2 : 2+body[1]])
		}
		body = body[2+body[1]:]
	}
	return ""
}

// copyFrames copies the frames of a multiplexer, and tells of each message that is in them, before
// the last of it goes on.
func copyFrames(to io.Writer, from io.Reader, each func(message)) error {
	const frameHead, messageHead = 8, 10
	rest := map[uint32][]byte{} // of messages, by service
	head := make([]byte, frameHead)
	for {
		if _, err := io.ReadFull(from, head); err != nil {
			return err
		}
		frame := make([]byte, frameHead+binary.BigEndian.Uint32(head[4:]))
		copy(frame, head)
		if _, err := io.ReadFull(from, frame[frameHead:]); err != nil {
			return err
		}
		service := binary.BigEndian.Uint32(head)
		all := append(rest[service], frame[frameHead:]...)
		for len(all) >= messageHead {
			end := messageHead + int(binary.BigEndian.Uint32(all))
			if len(all) < end {
				break
			}
			each(message{service, binary.BigEndian.Uint32(all[4:]), all[8], all[messageHead:end]})
			all = all[end:]
		}
		rest[service] = slices.Clone(all)
		if _, err := to.Write(frame); err != nil {
			return err
		}
	}
}
