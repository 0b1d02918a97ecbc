package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/kube/api"
	"berth.dev/berth/kube/batch"
	"berth.dev/berth/kube/predict"
	"berth.dev/berth/kube/usage"
)

const gib = 1 << 30

// figures are a meter's that a test sets.
type figures struct {
	r    usage.Report
	none bool
}

func (f *figures) Sample(time.Time) error { return nil }

func (f *figures) Report(time.Duration) (usage.Report, bool) { return f.r, !f.none }

// web is a pod of 8 CPUs and 16 GiB.
func web() *corev1.Pod {
	request := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "web"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: request}}}},
		Status:     corev1.PodStatus{QOSClass: corev1.PodQOSBurstable},
	}
}

// apiServer is one that has a node of 32 CPUs and 64 GiB, and pods that the test sets.
func apiServer(t *testing.T, pods ...any) (c *api.Client, known *api.Pods, patched func() string) {
	t.Helper()
	var mu sync.Mutex
	var last string
	c = stubServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			text, _ := io.ReadAll(r.Body)
			mu.Lock()
			last = string(text)
			mu.Unlock()
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"},"status":{"capacity":{"cpu":"32","memory":"64Gi"},"allocatable":{"cpu":"32","memory":"64Gi"}}}`)
	})
	known = c.NewPods(nil)
	if err := known.Replace(pods, ""); err != nil {
		t.Fatal(err)
	}
	return c, known, func() string { mu.Lock(); defer mu.Unlock(); return last }
}

// stubServer answers every request about node n1 as told.
func stubServer(t *testing.T, answer http.HandlerFunc) *api.Client {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", s.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := api.New(api.Config{Kubeconfig: file, Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What prod pods are predicted not to use is told as mid resources, also after a restart; before a
// day is over it is nothing.
func TestMidOfPrediction(t *testing.T) {
	t.Parallel()
	client, pods, patched := apiServer(t, web())
	all, _ := pods.All()
	file := filepath.Join(t.TempDir(), "prediction", "learnt.json")
	used := batch.Amount{Milli: 1000, Memory: 2 * gib}
	meter := &figures{r: usage.Report{Node: plus(used, batch.Amount{Milli: 500, Memory: gib}), Pods: map[string]batch.Amount{"web": used}}}
	b := &Batch{Meter: meter, Strategy: batch.Strategy{MidCPU: 50}, Learnt: file}
	a := New(Options{Client: client, Pods: pods, Batch: b})
	told := func(l *learner) map[string]string {
		t.Helper()
		if err := a.tellBatch(context.Background(), &status{client: client}, l, time.Now()); err != nil {
			t.Fatal(err)
		}
		var patch struct {
			Status struct{ Allocatable map[string]string }
		}
		if err := json.Unmarshal([]byte(patched()), &patch); err != nil {
			t.Fatal(err)
		}
		return patch.Status.Allocatable
	}
	begin := time.Now().Add(-25 * time.Hour)
	l, err := newLearner(b, begin)
	if err != nil {
		t.Fatal(err)
	}
	meter.r.At = time.Now()
	if got := told(l); got[midCPU] != "0" || got[batchCPU] == "" {
		t.Errorf("before anything is learnt: %v", got)
	}
	for now := begin; now.Before(time.Now()); now = now.Add(predict.Every) {
		meter.r.At = now
		l.learn(now, all)
	}
	// 8 CPUs less 110 % of the ends of the buckets that 1 CPU and half a CPU are in.
	got := told(l)
	if got[midCPU] != "6268" || got[midMemory] == "0" || got[midMemory] == "" {
		t.Errorf("%v", got)
	}
	if l.unkept != nil {
		t.Error(l.unkept)
	}
	if again, err := newLearner(b, time.Now()); err != nil || told(again)[midCPU] != got[midCPU] {
		t.Errorf("after a restart: %v, was %v; %v", told(again), got, err)
	}
	web := web()
	now := metav1.Now()
	web.DeletionTimestamp = &now
	if err := pods.Update(web); err != nil {
		t.Fatal(err)
	}
	if got := told(l); got[midCPU] != "0" {
		t.Errorf("of a pod that is being deleted: %v", got)
	}
}

func plus(a, b batch.Amount) batch.Amount {
	return batch.Amount{Milli: a.Milli + b.Milli, Memory: a.Memory + b.Memory}
}

// Figures count once, and a file that cannot be read keeps nobody from learning.
func TestLearner(t *testing.T) {
	t.Parallel()
	_, pods, _ := apiServer(t, web())
	all, _ := pods.All()
	dir := t.TempDir()
	begin := time.Now()
	meter := &figures{r: usage.Report{At: begin}}
	b := &Batch{Meter: meter, Strategy: batch.Strategy{MidCPU: 50}, Learnt: filepath.Join(dir, "learnt.json")}
	text := func(l *learner) string {
		t.Helper()
		s, err := l.Text()
		if err != nil {
			t.Fatal(err)
		}
		return string(s)
	}
	l, err := newLearner(b, begin)
	if err != nil {
		t.Fatal(err)
	}
	nothing := text(l)
	meter.none = true
	l.learn(begin, all)
	if text(l) != nothing {
		t.Error("learnt from nothing")
	}
	meter.none = false
	l.learn(begin, all)
	once := text(l)
	l.learn(begin.Add(time.Minute), all) // of a meter that fails since
	if once == nothing || text(l) != once {
		t.Errorf("%s, then %s", once, text(l))
	}
	if _, err := os.Stat(b.Learnt); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("written too early: %v", err)
	}
	l.learn(begin.Add(keepEvery), all)
	if kept, err := os.ReadFile(b.Learnt); err != nil || string(kept) != once || l.unkept != nil {
		t.Errorf("%s, %v, %v", kept, err, l.unkept)
	}
	for _, spoil := range []func() error{
		func() error { return os.WriteFile(b.Learnt, []byte(once[:20]), 0o600) },
		func() error { return os.WriteFile(b.Learnt, []byte(`{"version":3}`), 0o600) },
		func() error { return os.Chmod(b.Learnt, 0o666) },
		func() error { return errors.Join(os.Remove(b.Learnt), os.Symlink("/etc/passwd", b.Learnt)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		l, err := newLearner(b, begin)
		if err == nil || !strings.Contains(err.Error(), b.Learnt) || !strings.Contains(err.Error(), "learnt anew") || text(l) != nothing {
			t.Errorf("%v, %s", err, text(l))
		}
		info, err := os.Lstat(b.Learnt)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // what is there is moved, once
			if err := l.keep(begin); err != nil {
				t.Error(err)
			}
		}
		if is, err := os.Lstat(l.aside()); err != nil || !os.SameFile(info, is) {
			t.Errorf("the file that could not be read is gone: %v", err)
		}
		if kept, err := os.ReadFile(b.Learnt); err != nil || string(kept) != nothing {
			t.Errorf("%s, %v", kept, err)
		}
	}
	b.Learnt = filepath.Join(dir, "learnt.json", "below a file")
	if l, _ := newLearner(b, begin); l.keep(begin) == nil {
		t.Error("kept below a file")
	}
}

// A clock that is behind at first costs nothing; a file that is of the future for good is moved.
func TestLearnerClock(t *testing.T) {
	t.Parallel()
	_, pods, _ := apiServer(t, web())
	all, _ := pods.All()
	real := time.Now()
	meter := &figures{r: usage.Report{At: real}}
	b := &Batch{Meter: meter, Strategy: batch.Strategy{MidCPU: 50}, Learnt: filepath.Join(t.TempDir(), "learnt.json")}
	before, err := newLearner(b, real)
	if err != nil {
		t.Fatal(err)
	}
	before.learn(real, all)
	if err := before.keep(real); err != nil {
		t.Fatal(err)
	}
	was, err := os.ReadFile(b.Learnt)
	if err != nil {
		t.Fatal(err)
	}
	// begun has a learner that began some time before the file was written.
	begun := func() (l *learner, now time.Time) {
		t.Helper()
		now = real.Add(-48 * time.Hour)
		l, err := newLearner(b, now)
		if !errors.Is(err, predict.ErrClock) || !strings.Contains(err.Error(), "waits") {
			t.Fatal(err)
		}
		for range 20 { // beyond keepEvery
			now = now.Add(predict.Every)
			meter.r.At = now
			l.learn(now, all)
		}
		if err := l.keep(now); !errors.Is(err, predict.ErrClock) { // the agent ends
			t.Errorf("kept: %v", err)
		}
		if is, err := os.ReadFile(b.Learnt); err != nil || string(is) != string(was) {
			t.Fatalf("%s, %v; was %s", is, err, was)
		}
		return l, now
	}
	l, _ := begun()
	l.began = real.Add(-20 * time.Minute) // the clock is put right, which this time does not notice
	l.kept = l.began
	l.learn(real, all)
	if text, err := l.Text(); err != nil || string(text) != string(was) || l.unread != nil || l.unkept != nil {
		t.Errorf("%s, %v, %v; was %s", text, err, l.unread, was)
	}
	l, now := begun()
	for range 60 {
		now = now.Add(predict.Every)
		meter.r.At = now
		l.learn(now, all)
	}
	if is, err := os.ReadFile(l.aside()); err != nil || string(is) != string(was) || l.unkept != nil {
		t.Errorf("aside: %s, %v, %v; was %s", is, err, l.unkept, was)
	}
	if again, err := newLearner(b, now); err != nil || again.unread != nil {
		t.Errorf("what was learnt since cannot be read: %v", err)
	}
}
