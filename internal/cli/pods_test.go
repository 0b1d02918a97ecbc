package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/guard/observe"
	"berth.dev/berth/watch/pods"
)

const (
	apiUID, jobUID = "8d2c5f4e-1c2b-4a39-9f6d-0a1b2c3d4e5f", "11111111-2222-3333-4444-555555555555"
	apiID          = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	sideID         = "00000000000000000000000000000000000000000000000000000000000000aa"
	jobID          = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	apiPod         = "kubepods/burstable/pod" + apiUID
	jobGroup       = "kubepods/besteffort/pod" + jobUID + "/" + jobID
)

// podRecording is the recording of a hog with pods in place of its two groups. Beside the
// service there may be a sidecar in its pod.
func podRecording(t *testing.T, sidecar bool) string {
	t.Helper()
	text, err := os.ReadFile(recording("hog"))
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	var h observe.Header
	if err := json.Unmarshal([]byte(first), &h); err != nil {
		t.Fatal(err)
	}
	for i := range h.Groups {
		g := &h.Groups[i]
		switch g.Path {
		case "demo/api":
			g.Path, g.Pod = apiPod+"/"+apiID, &pods.Name{Namespace: "shop", Pod: "api-0", UID: apiUID, Container: "api", QoS: pods.Burstable}
		case "demo/batch":
			g.Path, g.Pod = jobGroup, &pods.Name{Namespace: "batch", Pod: "job", UID: jobUID, Container: "main", QoS: pods.BestEffort}
		default:
			continue
		}
		g.Name = g.Pod.String()
	}
	if sidecar {
		side := &pods.Name{Namespace: "shop", Pod: "api-0", UID: apiUID, Container: "side", QoS: pods.Burstable}
		h.Groups = append(h.Groups, observe.Group{Path: apiPod + "/" + sideID, Name: side.String(), Pod: side})
	}
	header, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	rest = strings.NewReplacer(`"demo/api"`, `"`+apiPod+"/"+apiID+`"`, `"demo/batch"`, `"`+jobGroup+`"`).Replace(rest)
	name := filepath.Join(t.TempDir(), "pods.jsonl")
	if err := os.WriteFile(name, []byte(string(header)+"\n"+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A pod is diagnosed by its name, and so is whom it accuses.
func TestDiagnosePod(t *testing.T) {
	t.Parallel()
	file := podRecording(t, false)
	for _, name := range []string{"shop/api-0", "api-0", "api-0/api", "shop/api-0/api"} {
		out, errs, code := berth(t, "diagnose", "--replay", file, name)
		if code != exitFindings || !strings.Contains(out, "shop/api-0/api waits for CPUs that others use, because of batch/job/main") || strings.Contains(out, apiID) {
			t.Errorf("%s: status %d, %s%s", name, code, out, errs)
		}
	}
	out, errs, code := berth(t, "diagnose", "--replay", file, "shop/api-0", "-o", "json")
	var d struct {
		Target   string
		Pods     []pods.Name
		Findings []struct{ Victim, Suspect string }
	}
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != exitFindings {
		t.Fatalf("status %d, %v: %s", code, err, errs)
	}
	if d.Target != "shop/api-0/api" || len(d.Pods) != 2 || d.Pods[0].UID+d.Pods[1].UID != jobUID+apiUID && d.Pods[0].UID+d.Pods[1].UID != apiUID+jobUID || d.Findings[0].Suspect != "batch/job/main" {
		t.Errorf("%+v", d)
	}
	for name, want := range map[string]string{
		"shop/api-1": `no such control group, unit, workload or pod, and no process has that name; did you mean "shop/api-0"?`,
		"other/api":  "no such control group",
	} {
		if _, errs, code := berth(t, "diagnose", "--replay", file, name); code != exitError || !strings.Contains(errs, want) {
			t.Errorf("%s: status %d, %s", name, code, errs)
		}
	}
	_, errs, code = berth(t, "diagnose", "--replay", podRecording(t, true), "shop/api-0")
	if code != exitError || !strings.Contains(errs, "name one of its containers: shop/api-0/api, shop/api-0/side") {
		t.Errorf("two containers: status %d, %s", code, errs)
	}
}

func TestGuardPod(t *testing.T) {
	t.Parallel()
	args := []string{"guard", "--replay", podRecording(t, true), "--mode", "preview", "--sensitive", "api-0", "--best-effort", "batch/*"}
	out, code := runBerth(t, args...)
	if code != exitOK || !strings.Contains(out, "shop/api-0/api waits for CPUs that others use, because of batch/job/main") || !strings.Contains(out, "would apply") || !strings.Contains(out, "2 sensitive groups") {
		t.Errorf("status %d: %s", code, out)
	}
	if out, _ := runBerth(t, append(args, "--protect", "batch/job")...); strings.Contains(out, "would apply") || !strings.Contains(out, "protected") {
		t.Errorf("protected: %s", out)
	}
}

// The groups of a host's tree have the names that the kubelet's files tell.
func TestPodNames(t *testing.T) {
	t.Parallel()
	h := observe.Header{Groups: []observe.Group{
		{Path: apiPod + "/" + apiID, Pod: &pods.Name{Namespace: "shop", Pod: "api-0", Container: "api"}},
		{Path: "kubepods/podx/" + jobID, Pod: &pods.Name{Namespace: "test", Pod: "api-0", Container: "api"}},
	}}
	if got := shownName(&h, apiPod); got != "shop/api-0" {
		t.Errorf("the pod is %q", got)
	}
	if _, err := findPod(&h, "api-0"); err == nil || !strings.Contains(err.Error(), "2 pods") {
		t.Errorf("two pods of a name: %v", err)
	}
}
