package attack

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMemberOfTheGroup has a member of agent.group go beyond what is the member's own,
// and then do what the group is for.
func TestMemberOfTheGroup(t *testing.T) {
	boxed(t, func(b *box) {
		if err := os.Mkdir("/run/berth", 0o755); err != nil {
			b.Fatal(err)
		}
		agent := b.agent("agent: {group: \"65534\"}\nguard: {mode: observe}\n")
		victim := b.start(root, "sleep", "1000")
		roots := b.start(root, berth, "run", "--name", "roots", "--", "sleep", "1000")
		b.group(root, "service", "cpu", "cpuset")
		b.await("root's workload", func() bool { return strings.Contains(b.ps(), "roots") }, roots.out)
		own := b.start(stranger, "sleep", "1000")
		pid := func(p *process) string { return strconv.Itoa(p.Process.Pid) }
		place := func(more string) string { return fmt.Sprintf(`{"request":{"id":"evil"},%s}`, more) }
		for what, tc := range map[string]struct{ method, path, body string }{
			"root's process by its id":   {"POST", "workloads", place(`"pid":` + pid(victim))},
			"root's process as owner":    {"POST", "workloads", place(`"pid":` + pid(own) + `,"owner":{"pid":` + pid(victim) + `}`)},
			"the first process":          {"POST", "workloads", place(`"pid":1`)},
			"a group that is there":      {"POST", "workloads", place(`"group":"service"`)},
			"a group, frozen":            {"POST", "workloads", place(`"group":"service","limits":{"frozen":"on"}`)},
			"nobody's CPUs":              {"POST", "workloads", place(`"cpus":"0"`)},
			"more weight than all":       {"POST", "workloads", place(`"pid":` + pid(own) + `,"limits":{"weight":10000}`)},
			"the name of a service":      {"POST", "workloads", `{"request":{"id":"web:service"},"pid":` + pid(own) + `}`},
			"the host's reserved CPUs":   {"POST", "workloads", `{"request":{"id":"evil","class":"SYSTEM"},"pid":` + pid(own) + `}`},
			"to kill root's workload":    {"DELETE", "workloads/roots?kill=true", ""},
			"to release root's workload": {"DELETE", "workloads/roots", ""},
			"to limit root's workload":   {"PUT", "workloads/roots", `{"request":{"id":"roots"},"limits":{"memoryMax":4096}}`},
			"to move root's workload":    {"POST", "workloads/roots/move", `{"cpus":"0"}`},
			"the guard's mode":           {"PUT", "guard", `{"mode":"enforce"}`},
		} {
			out, _ := b.run(stranger, ask.with(apiSocket, tc.method, "http://agent/v1/"+tc.path, tc.body, "Content-Type", "application/json")...)
			if !strings.HasPrefix(out, "403 ") || !strings.Contains(out, "user 65534 may not") || !strings.Contains(out, "agent.admins") {
				b.Errorf("%s: %s", what, out)
			}
		}
		for _, argv := range [][]string{
			{berth, "release", "roots", "--kill", "--socket", apiSocket},
			{berth, "guard", "off", "--socket", apiSocket},
		} {
			if out, code := b.run(stranger, argv...); code == 0 || !strings.Contains(out, "user 65534 may not") {
				b.Errorf("%v: exit status %d: %s", argv, code, out)
			}
		}
		if victim.ProcessState != nil || roots.ProcessState != nil {
			b.Error("root's processes have ended")
		}
		if out := b.ps(); strings.Contains(out, "evil") || !strings.Contains(out, "roots") {
			b.Errorf("placed are\n%s", out)
		}

		// What the group is for, from the start to the end.
		if out, code := b.run(stranger, ask.with(apiSocket, "GET", "http://agent/v1/workloads/roots", "")...); code != 0 || !strings.HasPrefix(out, "200 ") {
			b.Errorf("a member does not see root's workload: %s", out)
		}
		run := func(name string, more ...string) []string {
			return append([]string{berth, "run", "--socket", apiSocket, "--name", name}, more...)
		}
		released := func(name string) {
			b.Helper()
			b.await(name+" to be released", func() bool { return !strings.Contains(b.ps(), name) })
		}
		out, code := b.run(stranger, run("whole", "--memory", "64Mi", "--", "sh", "-c", "cat /proc/self/cgroup; exit 3")...)
		if code != 3 || !strings.Contains(out, "/berth/whole") {
			b.Errorf("berth run of a member: exit status %d: %s", code, out)
		}
		released("whole")
		long := b.start(stranger, run("long", "--", "sleep", "1000")...)
		b.await("the member's workload", func() bool { return strings.Contains(b.ps("-o", "json"), `"uid": 65534`) }, long.out, agent.out)
		if out, code := b.run(stranger, berth, "resize", "long", "--quota", "50%", "--socket", apiSocket); code != 0 {
			b.Errorf("resize: %s", out)
		}
		long.end(syscall.SIGINT)
		released("long")
		if out, code := b.run(stranger, run("left", "--kill-left", "--", "sh", "-c", "sleep 1000 & sleep 1001 & exit 0")...); code != 0 {
			b.Errorf("--kill-left: exit status %d: %s", code, out)
		}
		released("left")
		kept := b.start(stranger, run("kept", "--", "sleep", "1000")...)
		b.await("the member's workload", func() bool { return strings.Contains(b.ps(), "kept") }, kept.out)
		if out, code := b.run(stranger, berth, "release", "kept", "--kill", "--socket", apiSocket); code != 0 {
			b.Errorf("release --kill: %s", out)
		}
		select {
		case <-kept.done:
		case <-time.After(time.Minute):
			b.Error("release --kill has not killed the member's process")
		}
		released("kept")
	})
}
