package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(bad, []byte("kind: nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		c    Config
		want string
	}{
		{Config{}, "neither"},
		{Config{Kubeconfig: "f", InCluster: true}, "only one"},
		{Config{InCluster: true}, `node ""`},
		{Config{InCluster: true, Node: "a/../b"}, `node "a/../b"`},
		{Config{Kubeconfig: "f", Node: "n", Timeout: -1}, "less than 0"},
		{Config{Kubeconfig: bad + ".none", Node: "n"}, "no such file"},
		{Config{Kubeconfig: bad, Node: "n"}, "connect to the API server"},
	} {
		if _, err := New(c.c); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.c, err, c.want)
		}
	}
}

func pod(uid string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p" + uid, UID: types.UID(uid)}}
	if change != nil {
		change(p)
	}
	return p
}

func list(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

// A pod pays for the most that its containers have at a time, as the scheduler counts.
func TestRequests(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	with := func(cpu, memory string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list(cpu, memory)}}
	}
	sidecar := with("100m", "10")
	sidecar.RestartPolicy = &always
	p := pod("1", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{with("5", "1"), sidecar, with("2", "500")}
		p.Spec.Containers = []corev1.Container{with("1", "100"), with("1500m", "200")}
	})
	want := func(milli int, memory int64) {
		t.Helper()
		if m, b := podOf(p).Requests(); m != milli || b != memory {
			t.Errorf("%d, %d, want %d, %d", m, b, milli, memory)
		}
	}
	want(5000, 510) // the first init container; the second beside the sidecar
	p.Spec.InitContainers = p.Spec.InitContainers[1:]
	want(2600, 510)
	p.Spec.Overhead = list("250m", "5")
	want(2850, 515)
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("4", "1000")}
	want(4250, 1005)
}

// What nobody can have takes nothing off what others request.
func TestRequestsWithoutEnd(t *testing.T) {
	t.Parallel()
	for _, of := range [][2]string{
		{"9223372036854775", "7Ei"}, {"9223372036854775807", "13835058055282163712"}, {"10000000G", "1e19"}, {"1e19", "1e30"},
		{"1000", "64Ti"}, {"1000001m", "70368744177664001m"}, {"9223372036854775807000m", "18446744073709551616"},
	} {
		is := list(of[0], of[1])
		huge := corev1.Container{Resources: corev1.ResourceRequirements{Requests: is, Limits: is}}
		p := pod("1", func(p *corev1.Pod) {
			p.Spec.Containers, p.Spec.Resources, p.Spec.Overhead = []corev1.Container{huge, huge, huge}, &huge.Resources, is
		})
		got := podOf(p)
		if m, b := got.Requests(); m != most || b != mostMemory {
			t.Errorf("%s: %d, %d", of, m, b)
		}
		for _, one := range []podwords.Resources{got.Containers[2].Resources, got.Resources, got.Overhead} {
			if one.Milli != most || one.Memory != mostMemory || one != got.Overhead && one.LimitMilli != most {
				t.Errorf("%s: %+v", of, one)
			}
		}
	}
	for _, of := range []string{"-1", "-1e19", "-9223372036854775808"} {
		if got := resources(list(of, of), list(of, of), place.LS); got != (podwords.Resources{QoS: place.LS}) {
			t.Errorf("%s: %+v", of, got)
		}
	}
	if got, want := resources(list("999999m", "70368744177663"), list("1m", "1"), place.BE), (podwords.Resources{Milli: most - 1, LimitMilli: 1, Memory: mostMemory - 1, QoS: place.BE}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The API server is asked for the pods of this node that have not ended, and for no others.
func TestSource(t *testing.T) {
	t.Parallel()
	var asked []string
	c := stub(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("watch")+" "+r.URL.Query().Get("fieldSelector"))
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1"}`)
		}
	})
	source := c.NewPods(nil).source()
	_, err := source.ListWithContextFunc(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changes, err := source.WatchFuncWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changes.Stop()
	const want = " spec.nodeName=n,status.phase!=Succeeded,status.phase!=Failed"
	if !slices.Equal(asked, []string{want, "true" + want}) {
		t.Errorf("asked for %q", asked)
	}
}

// What is kept of a pod is small, and the same before and after trimming.
func TestTrim(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	prio := int32(9500)
	p := pod("1", func(p *corev1.Pod) {
		p.Labels = map[string]string{"koordinator.sh/qosClass": "LSE"}
		p.Annotations = map[string]string{"big": strings.Repeat("x", 200<<10), mirrorKey: "feed"}
		p.Spec = corev1.PodSpec{
			Priority: &prio, PriorityClassName: "koord-prod", Overhead: list("1", "1"), Resources: &corev1.ResourceRequirements{Requests: list("3", "3")},
			InitContainers: []corev1.Container{{Name: "s", RestartPolicy: &always, Args: []string{strings.Repeat("y", 1000)}}},
			Containers:     []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "SECRET"}}, Resources: corev1.ResourceRequirements{Requests: list("2", "2"), Limits: list("2", "2")}}},
			Volumes:        []corev1.Volume{{Name: "v"}},
		}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSGuaranteed, Message: "long"}
	})
	before := podOf(p)
	size := p.Size()
	trim(p)
	if after := podOf(p); fmt.Sprintf("%+v", after) != fmt.Sprintf("%+v", before) || after.NodeUID != "feed" || after.QoS != place.LSR || after.KoordQoS != "LSE" || !after.Started {
		t.Errorf("%+v, was %+v", after, before)
	}
	if p.Size() > size/100 || len(p.Spec.Volumes)+len(p.Spec.Containers[0].Env) > 0 {
		t.Errorf("%d of %d bytes are left", p.Size(), size)
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	p := (&Client{}).NewPods(nil)
	if _, synced := p.All(); synced {
		t.Error("synced before a list")
	}
	static := pod("2", func(p *corev1.Pod) { p.Annotations = map[string]string{mirrorKey: "hash"} })
	if err := p.Replace([]any{pod("1", nil), static}, ""); err != nil {
		t.Fatal(err)
	}
	all, synced := p.All()
	if len(all) != 2 || !synced || p.UID("a", "p1", "") != "1" || p.UID("a", "p2", "hash") != "2" || p.UID("a", "x", "other") != "other" || p.UID("a", "x", "") != "" {
		t.Errorf("%v, %v", all, synced)
	}
	if _, ok := p.Pod("hash"); !ok {
		t.Error("a static pod is not known by the UID that the runtime has")
	}
	// A pod of the same name that comes before the old one is gone.
	_ = p.Add(pod("3", func(p *corev1.Pod) { p.Name = "p1" }))
	_ = p.Delete(pod("1", nil))
	_ = p.Delete(static)
	if _, ok := p.Pod("hash"); ok || p.UID("a", "p1", "") != "3" {
		t.Error("the new pod is forgotten with the old one, or a pod that is gone is not")
	}
	// Others that say to have the UIDs of pods get nothing of theirs.
	says := func(uid, of string) *corev1.Pod {
		return pod(uid, func(p *corev1.Pod) { p.Annotations = map[string]string{mirrorKey: of, "kubernetes.io/config.hash": of} })
	}
	victim := pod("3", func(p *corev1.Pod) { p.Name, p.Status.QOSClass = "p1", corev1.PodQOSGuaranteed })
	_ = p.Replace([]any{says("4", "3"), victim, static, says("5", "hash"), pod("6", func(p *corev1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.hash": "x"} })}, "")
	if info, ok := p.Pod("3"); !ok || info.QoS != place.LSR || p.UID("a", "p1", "3") != "3" {
		t.Errorf("pod 3 is %+v, %v, at the API server %s, since another says to have its UID", info, ok, p.UID("a", "p1", "3"))
	}
	if info, ok := p.Pod("hash"); ok {
		t.Errorf("of two that say to be a static pod %+v is taken for it", info)
	}
	if _, ok := p.Pod("x"); ok {
		t.Error("one that is no mirror is taken for a static pod")
	}
	all, _ = p.All()
	for _, one := range all {
		if one.NodeUID != one.UID {
			t.Errorf("pod %s is %s on the node", one.UID, one.NodeUID)
		}
	}
	_ = p.Delete(says("5", "hash"))
	if _, ok := p.Pod("hash"); !ok {
		t.Error("a static pod is not known once the other is gone")
	}
	var many []any
	for i := range MaxPods + 1 {
		many = append(many, pod(fmt.Sprint("m", i), nil))
	}
	_ = p.Replace(many, "")
	if all, synced := p.All(); len(all) != MaxPods || synced {
		t.Errorf("%d pods, synced %v", len(all), synced)
	}
	if err := p.Add("x"); err == nil {
		t.Error("a string is a pod")
	}
}

// Once there is room again, the next watch has all pods listed, until they are all known.
func TestRoomAgain(t *testing.T) {
	t.Parallel()
	p := stub(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "application/json") }).NewPods(nil)
	source := p.source()
	watches := func(when string, o metav1.ListOptions, want bool) {
		t.Helper()
		w, err := source.WatchFuncWithContext(t.Context(), o)
		if err == nil {
			w.Stop()
		}
		if (err == nil) != want || err != nil && !apierrors.IsResourceExpired(err) {
			t.Errorf("%s: %v", when, err)
		}
	}
	var all []any
	for i := range MaxPods + 1 {
		all = append(all, pod(fmt.Sprint("m", i), nil))
	}
	_ = p.Replace(all, "")
	watches("no room", metav1.ListOptions{}, true)
	for _, one := range all[:100] {
		_ = p.Delete(one)
	}
	watches("room again", metav1.ListOptions{}, false)
	lists := true
	watches("a watch that lists itself", metav1.ListOptions{SendInitialEvents: &lists}, true)
	_ = p.Replace(all[100:], "")
	if known, synced := p.All(); len(known) != MaxPods+1-100 || !synced {
		t.Errorf("after a list %d pods, synced %v", len(known), synced)
	}
	watches("all are known", metav1.ListOptions{}, true)
}

func FuzzCut(f *testing.F) {
	for _, seed := range []string{"", "short", strings.Repeat("ü", MaxText), "\x1b[31m\n", strings.Repeat("\xff", 5*MaxText)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := cut(text)
		if len(got) > MaxText || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\x1b") {
			t.Errorf("%q became %d bytes: %q", text, len(got), got)
		}
	})
}

// stub answers every request as told.
func stub(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	c, err := newClient(&rest.Config{Host: s.URL}, Config{Node: "n", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Tell never waits, however long the server takes, and counts what it drops.
func TestEventsNeverBlock(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	c := stub(t, func(http.ResponseWriter, *http.Request) { <-hold })
	defer close(hold)
	e := c.NewEvents(nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { e.Run(ctx); close(done) }()
	began := time.Now()
	for i := range 10 * QueueLength {
		e.Tell(Note{About: About{Namespace: "a", Pod: "p"}, Reason: "R", Text: fmt.Sprint(i)})
	}
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("it took %s", d)
	}
	if n := e.Counts(); n.Dropped < 8*QueueLength || n.Sent != 0 {
		t.Errorf("%+v", n)
	}
	cancel()
	<-done
}

// A server that is busy is asked again, one that forbids only a few times.
func TestEventsTryAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status, forbidden int
		want              Counts
	}{{http.StatusServiceUnavailable, 0, Counts{Sent: 1}}, {http.StatusForbidden, 100, Counts{Refused: 1}}, {http.StatusForbidden, 3, Counts{Sent: 1}}} {
		status, forbidden, want := test.status, test.forbidden, test.want
		requests := 0
		c := stub(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if requests++; requests < 3 || status == http.StatusForbidden && requests < forbidden {
				reason := map[int]string{403: "Forbidden", 503: "ServiceUnavailable"}[status]
				w.WriteHeader(status)
				fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, status)
				return
			}
			fmt.Fprint(w, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"e","namespace":"a"}}`)
		})
		var told error
		e := c.NewEvents(nil, func(err error) { told = err })
		e.wait = time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { e.Run(ctx); close(done) }()
		e.Tell(Note{About: About{Namespace: "a", Pod: "p"}, Reason: "R", Text: "t"})
		for end := time.Now().Add(time.Minute); e.Counts() == (Counts{}) && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		cancel()
		<-done
		if got := e.Counts(); got != want || (told != nil) != (want.Refused > 0) {
			t.Errorf("%d: %+v, want %+v; told %v", status, got, want, told)
		}
	}
}

// A document is written once, again after a failure, and again after a change.
func TestDocument(t *testing.T) {
	t.Parallel()
	requests, fail := 0, false
	c := stub(t, func(w http.ResponseWriter, r *http.Request) {
		requests++
		if r.Method != http.MethodPatch || r.Header.Get("Content-Type") != "application/apply-patch+yaml" || r.URL.Query().Get("fieldManager") != "berth" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		if fail {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	d := c.Topology()
	for i, step := range []struct {
		value   string
		fail    bool
		age     time.Duration
		written bool
	}{
		{"a", false, 0, true}, {"a", false, 0, false}, {"b", true, 0, false}, {"b", false, 0, true}, {"b", false, 0, false}, {"b", false, 2 * rewrite, true},
	} {
		fail = step.fail
		d.at = d.at.Add(-step.age)
		if written, err := d.Write(t.Context(), step.value); written != step.written || (err != nil) != step.fail {
			t.Errorf("step %d: %v, %v", i, written, err)
		}
	}
	if requests < 4 { // a server's error may be tried again by the client itself
		t.Errorf("%d requests", requests)
	}
}
