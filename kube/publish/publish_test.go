package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/doctor"
	"berth.dev/berth/kube/api"
	"berth.dev/berth/kube/batch"
	"berth.dev/berth/kube/nri"
	"berth.dev/berth/kube/usage"
	"berth.dev/berth/kube/zones"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

func TestReservation(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Reserved{
		"": {}, "{}": {}, `{"resources":{"cpu":"1500m","memory":"1Gi"}}`: {Amount: batch.Amount{Milli: 1500, Memory: 1 << 30}},
		`{"resources":{"cpu":"9"},"reservedCPUs":"0-1,4","applyPolicy":"Default"}`: {batch.Amount{Milli: 3000}, cpuset.MustOf(0, 1, 4)},
	} {
		if got, err := Reservation(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"x", `{"resources":{"cpu":"-1"}}`, `{"reservedCPUs":"3-1"}`, `{"resources":{"cpu":"x"}}`, strings.Repeat(" ", 65<<10)} {
		if got, err := Reservation(text); err == nil || got != (Reserved{}) {
			t.Errorf("%.40s: %+v, %v", text, got, err)
		}
	}
}

// Of CPUs that Koordinator reserves on a node it is told which a container may own all the same.
func TestUnreserved(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, ownable, want string }{
		{"", "0-7", ""}, {`{"resources":{"cpu":"2"}}`, "0-7", ""}, {`{"reservedCPUs":"0-1"}`, "2-7", ""},
		{`{"reservedCPUs":"0-2"}`, "2-7", "reserves CPUs 2, and containers may own them here"},
		{`{"reservedCPUs":"0-1,9"}`, "0-7", "reserves CPUs 0-1,"}, {`{"reservedCPUs":"x"}`, "2-7", "reservedCPUs"},
	} {
		node := &corev1.Node{}
		node.Name, node.Annotations = "n1", map[string]string{reservationKey: tc.text}
		err := unreserved(node, cpuset.MustParse(tc.ownable))
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "node n1: annotation "+reservationKey)) {
			t.Errorf("%s beside %s: %v, want %q", tc.text, tc.ownable, err, tc.want)
		}
	}
}

// What keeps it from being known is told once, by batch where that runs; a node that may not be read is not
// asked for each minute.
func TestReservationUnknown(t *testing.T) {
	t.Parallel()
	forbidden := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`
	annotated := func(text string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","annotations":{%q:%q}}}`, reservationKey, text)
	}
	for name, c := range map[string]struct {
		status int
		body   string
		batch  bool
		want   string // "" for nothing
	}{
		"forbidden":             {http.StatusForbidden, forbidden, false, "let the agent get its node"},
		"forbidden, batch":      {http.StatusForbidden, forbidden, true, ""},
		"unreadable":            {http.StatusOK, annotated("x"), false, "annotation " + reservationKey},
		"unreadable, batch":     {http.StatusOK, annotated("x"), true, ""},
		"reserves them, batch":  {http.StatusOK, annotated(`{"reservedCPUs":"0"}`), true, "reserves CPUs 0,"},
		"a server out of order": {http.StatusInternalServerError, "{}", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			asked := 0
			client := stubServer(t, func(w http.ResponseWriter, _ *http.Request) {
				mu.Lock()
				asked++
				mu.Unlock()
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			told := make(chan string, 100)
			opt := Options{Client: client, Pods: client.NewPods(nil), Ownable: cpuset.MustOf(0, 1), retry: time.Millisecond, Tell: func(what string, err error) {
				told <- fmt.Sprint(what, ": ", err)
			}}
			if c.batch {
				opt.Batch = &Batch{}
			}
			a, done := New(opt), make(chan struct{})
			go func() { a.reservation(ctx); close(done) }()
			count := func() int { mu.Lock(); defer mu.Unlock(); return asked }
			least := 1
			if c.status == http.StatusInternalServerError {
				least = 3
			}
			for end := time.Now().Add(time.Minute); (count() < least || c.want != "" && len(told) == 0) && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
			if c.status != http.StatusInternalServerError { // what would be asked again at once
				time.Sleep(50 * time.Millisecond)
			}
			cancel()
			<-done
			if n := count(); n < least || least == 1 && n != 1 {
				t.Errorf("asked %d times", n)
			}
			close(told)
			var all []string
			for text := range told {
				all = append(all, text)
			}
			if len(all) > 1 || (len(all) == 1) != (c.want != "") || c.want != "" && !(strings.HasPrefix(all[0], Reserving+": ") && strings.Contains(all[0], c.want)) {
				t.Errorf("told %q, want %q", all, c.want)
			}
		})
	}
}

func FuzzReservation(f *testing.F) {
	f.Add(`{"resources":{"cpu":"1500m","memory":"1Gi"},"reservedCPUs":"0-1"}`)
	f.Fuzz(func(t *testing.T, text string) {
		if a, err := Reservation(text); a.Milli < 0 || a.Memory < 0 || err != nil && a != (Reserved{}) {
			t.Errorf("%q: %+v, %v", text, a, err)
		}
	})
}

func FuzzRaw(f *testing.F) {
	f.Add(`{"cpu":"9","memory":"95Gi"}`)
	f.Fuzz(func(t *testing.T, text string) {
		node := &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("10")}}}
		node.Annotations = map[string]string{rawKey: text}
		if n, err := inputs(node, nil, &usage.Report{}); err == nil && (n.Reserved.Milli < 0 || n.Reserved.Memory < 0) {
			t.Errorf("%q: %+v", text, n)
		}
	})
}

func TestInputs(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	}
	node := &corev1.Node{Status: corev1.NodeStatus{Capacity: list("10", "100"), Allocatable: list("9", "95")}}
	node.Annotations = map[string]string{reservationKey: `{"resources":{"cpu":"2","memory":"1"}}`}
	pod := func(uid, qos string, class place.Class) *api.Pod {
		return &api.Pod{UID: uid, NodeUID: uid, KoordQoS: qos, PodInfo: nri.PodInfo{Resources: podwords.Resources{Milli: 100, Memory: 5, QoS: class}}}
	}
	got, err := inputs(node, []*api.Pod{
		pod("a", "LSE", place.LSR), pod("b", "", place.BE), pod("d", "BE", place.LS), pod("e", "LS", place.BE),
	}, &usage.Report{Node: batch.Amount{Milli: 1000, Memory: 50}, Pods: map[string]batch.Amount{"a": {Milli: 50, Memory: 2}, "gone": {Milli: 7, Memory: 3}}})
	request := batch.Amount{Milli: 100, Memory: 5}
	want := &batch.Node{
		Capacity: batch.Amount{Milli: 10_000, Memory: 100}, Reserved: batch.Amount{Milli: 2000, Memory: 5},
		Used: batch.Amount{Milli: 1000, Memory: 50}, System: batch.Amount{Milli: 943, Memory: 45}, Gone: batch.Amount{Milli: 7, Memory: 3},
		Pods: []batch.Pod{
			{Kind: batch.Prod, LSE: true, Request: request, Used: &batch.Amount{Milli: 50, Memory: 2}},
			{Kind: batch.Batch, Request: request}, {Kind: batch.Batch, Request: request}, {Kind: batch.Prod, Request: request},
		},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	// Koordinator lets 27 CPUs be requested where there are 9.
	node.Status.Allocatable["cpu"] = resource.MustParse("27")
	node.Annotations = map[string]string{rawKey: `{"cpu":"9"}`}
	if got, err = inputs(node, nil, &usage.Report{}); err != nil || got.Reserved != (batch.Amount{Milli: 1000, Memory: 5}) {
		t.Errorf("amplified: %+v, %v", got, err)
	}
	for _, key := range []string{reservationKey, rawKey} {
		for _, text := range []string{"x", strings.Repeat(" ", 65<<10)} {
			node.Annotations = map[string]string{key: text}
			if _, err := inputs(node, nil, &usage.Report{}); err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s %.10q: %v", key, text, err)
			}
		}
	}
}

// While an annotation of the node cannot be read, what is left is not known: what was told stays for a while, and
// is taken away then, with an error that names the annotation. It is told again once that can be read.
func TestBatchOfUnreadAnnotation(t *testing.T) {
	t.Parallel()
	for _, key := range []string{reservationKey, rawKey} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			text, patches := "", []string(nil) // of a server that is asked by this goroutine only
			client := stubServer(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPatch {
					body, _ := io.ReadAll(r.Body)
					patches = append(patches, string(body))
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","annotations":{%q:%q}},"status":{"capacity":{"cpu":"10","memory":"100"},"allocatable":{"cpu":"10","memory":"100"}}}`, key, text)
			})
			pods := client.NewPods(nil)
			if err := pods.Replace(nil, ""); err != nil {
				t.Fatal(err)
			}
			meter := &figures{}
			a := New(Options{Client: client, Pods: pods, Batch: &Batch{Meter: meter}})
			s := &status{client: client}
			tells := func(when, annotation, wantErr, wantPatch string) {
				t.Helper()
				text, patches, meter.r.At = annotation, nil, time.Now()
				err := a.tellBatch(t.Context(), s, nil, time.Now())
				if (err == nil) != (wantErr == "") || err != nil && (!strings.Contains(err.Error(), wantErr) || !strings.Contains(err.Error(), "annotation "+key)) {
					t.Errorf("%s: %v, want %q", when, err, wantErr)
				}
				if got := strings.Join(patches, "\n"); (got == "") != (wantPatch == "") || !strings.Contains(got, wantPatch) {
					t.Errorf("%s: patches %q, want %q", when, got, wantPatch)
				}
			}
			const amount, none = `"kubernetes.io/batch-cpu":"6000"`, `"kubernetes.io/batch-cpu":null`
			tells("at first", "{}", "", amount)
			tells("unread", "x", "stay as told until", "")
			s.fresh = time.Now().Add(-16 * time.Minute)
			tells("unread for 16 minutes", "x", "are taken away", none)
			tells("still unread", "x", "are taken away", "")
			tells("read again", "{}", "", amount)
		})
	}
}

// What nobody can have, of a node or in its annotations, is all that a node can have, and no sum of it wraps
// around.
func TestInputsWithoutEnd(t *testing.T) {
	t.Parallel()
	some := corev1.ResourceList{"cpu": resource.MustParse("10"), "memory": resource.MustParse("100")}
	most := batch.Amount{Milli: mostMilli, Memory: mostMemory}
	for _, of := range []string{"99999999999999999", "9223372036854775807", "13835058055282163712", "1e19", "1e30"} {
		huge := corev1.ResourceList{"cpu": resource.MustParse(of), "memory": resource.MustParse(of)}
		text := fmt.Sprintf(`{"cpu":%q,"memory":%[1]q}`, of)
		for name, c := range map[string]struct {
			capacity, allocatable corev1.ResourceList
			annotations           map[string]string
			want                  batch.Node
		}{
			"capacity":    {huge, some, nil, batch.Node{Capacity: most, Reserved: batch.Amount{Milli: mostMilli - 10_000, Memory: mostMemory - 100}}},
			"allocatable": {some, huge, nil, batch.Node{Capacity: amountOf(some)}},
			"both":        {huge, huge, nil, batch.Node{Capacity: most}},
			rawKey:        {some, some, map[string]string{rawKey: text}, batch.Node{Capacity: amountOf(some)}},
			reservationKey: {some, some, map[string]string{reservationKey: `{"resources":` + text + `}`},
				batch.Node{Capacity: amountOf(some), Reserved: most}},
		} {
			node := &corev1.Node{Status: corev1.NodeStatus{Capacity: c.capacity, Allocatable: c.allocatable}}
			node.Annotations = c.annotations
			got, err := inputs(node, nil, &usage.Report{})
			if diff := cmp.Diff(&c.want, got); err != nil || diff != "" {
				t.Errorf("%s of %s: %v\n%s", name, of, err, diff)
				continue
			}
			left := (&batch.Strategy{}).Batch(got)
			if left.Milli < 0 || left.Memory < 0 || left.Milli > got.Capacity.Milli || left.Memory > got.Capacity.Memory {
				t.Errorf("%s of %s: %+v is left of %+v", name, of, left, got.Capacity)
			}
		}
	}
}

// A topology has a fingerprint only when all pods had started before its state was read: a scheduler that counts
// the same pods takes its CPUs for free that nobody holds there.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	var is zones.Topology // of a server that is asked by this goroutine only
	client := stubServer(t, func(_ http.ResponseWriter, r *http.Request) {
		is = zones.Topology{}
		if err := json.NewDecoder(r.Body).Decode(&is); err != nil {
			t.Error(err)
		}
	})
	m, err := machine.Short("1s1n4c1t")
	if err != nil {
		t.Fatal(err)
	}
	topology, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	state, err := place.New(topology, place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	pods := client.NewPods(nil)
	becomes := func(phase corev1.PodPhase) {
		p := web()
		p.Status.Phase = phase
		if err := pods.Update(p); err != nil {
			t.Error(err)
		}
	}
	if err := pods.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	var meanwhile corev1.PodPhase
	a := New(Options{Client: client, Pods: pods, State: func(context.Context) (*place.State, error) {
		becomes(meanwhile)
		return state, nil
	}})
	doc, of := client.Topology(), &owner{known: "u"}
	running := zones.Fingerprint([]zones.Pod{{Namespace: "a", Name: "web"}})
	for _, step := range []struct {
		name              string
		before, meanwhile corev1.PodPhase
		want              string
	}{
		{"it is bound", corev1.PodPending, corev1.PodPending, ""},
		{"it starts while the state is read", corev1.PodPending, corev1.PodRunning, ""},
		{"it runs", corev1.PodRunning, corev1.PodRunning, running},
	} {
		becomes(step.before)
		meanwhile = step.meanwhile
		if err := a.tellTopology(t.Context(), doc, of); err != nil {
			t.Fatal(err)
		}
		got := ""
		if i := slices.IndexFunc(is.Attributes, func(a zones.Attribute) bool { return a.Name == "nodeTopologyPodsFingerprint" }); i >= 0 {
			got = is.Attributes[i].Value
		}
		if got != step.want || len(is.Zones) != 1 {
			t.Errorf("%s: fingerprint %q, want %q; %d zones", step.name, got, step.want, len(is.Zones))
		}
	}
}

// The file of features is written again before it expires, without an API server, and an
// error is told once, and that it is over.
func TestFeaturesFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var told []string
		a := New(Options{Dir: dir + "/later", Look: func() *doctor.Report { return &doctor.Report{} }, Tell: func(what string, err error) {
			told = append(told, what)
			if err == nil {
				told[len(told)-1] += " again"
			}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.Run(ctx)
		time.Sleep(5 * time.Minute)
		if err := os.Mkdir(dir+"/later", 0o755); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		expiry := func() string {
			text, err := os.ReadFile(dir + "/later/berth")
			if err != nil {
				t.Fatal(err)
			}
			return strings.Split(string(text), "\n")[1]
		}
		first := expiry()
		time.Sleep(lookEvery + time.Minute)
		if second := expiry(); second == first {
			t.Errorf("%s was not renewed", first)
		}
		if diff := cmp.Diff([]string{"features", "features again"}, told); diff != "" {
			t.Error(diff)
		}
	})
}
