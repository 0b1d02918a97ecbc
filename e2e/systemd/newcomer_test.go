package systemd

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const newcomersPage = "/pages/quickstart-slow-service.md"

// newcomersUnits are what runs on the host of the newcomer: a service, its users and a hog.
func newcomersUnits() []string { return []string{"nginx.service", "users.service", "batch.service"} }

// TestNewcomer does what the first quick-start tells somebody who has a slow nginx and a busy host,
// on a fresh Debian: nginx as its package has it, users that ask it all the time, stress-ng as a
// service beside it. The page's commands are typed in their order. What comes of them is asked of the
// kernel where it can be: the name of the hog, protection in force, figures before and after, and
// all as it was.
func TestNewcomer(t *testing.T) {
	if _, err := exec.LookPath("nginx"); err != nil {
		t.Fatalf("the disk has no nginx: make e2e-systemd-fetch makes it anew (%v)", err)
	}
	run(t, "systemctl", "enable", "--now", "nginx.service")
	t.Cleanup(func() { run(t, "systemctl", "disable", "--now", "nginx.service") })
	await(t, "nginx answers", func() bool {
		answer, err := http.Get("http://127.0.0.1/")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
	startService(t, "users", "ExecStart=wrk -t1 -c4 -d10h http://127.0.0.1/\n")
	// Other methods have instructions that an emulated CPU refuses.
	startService(t, "batch", "ExecStart=stress-ng --cpu 8 --cpu-method int64 --quiet\n")
	t.Cleanup(func() { run(t, "berth", "restore", "--all") })
	await(t, "the hog has its nine processes", func() bool { return len(processes(t, "batch.service")) == 9 })

	before, began := stateOf(t, newcomersUnits()), time.Now()
	var parts strings.Builder // as first-contact.sh prints them
	part := func(name, answer string) {
		fmt.Fprintf(&parts, "%s,%.0f,%s\n", name, time.Since(began).Seconds(), answer)
	}
	figures := "before"
	for _, s := range stepsOf(t, newcomersPage) {
		out := typed(t, s)
		switch {
		case strings.Contains(s.Command, "berth diagnose"):
			const sure = "system.slice/nginx.service waits for CPUs that others use, because of system.slice/batch.service\n"
			await(t, "a rule is sure of the hog", func() bool { // on a busy host the newcomer looks twice
				if !strings.Contains(out, sure) {
					out = typed(t, s)
				}
				return strings.Contains(out, sure)
			})
			part("named", "because of it")
			if !strings.Contains(out, "\n  sudo berth guard --mode enforce --sensitive system.slice/nginx.service --best-effort system.slice/batch.service\n") {
				t.Error("nothing is proposed to have the hog yield")
			}
			part("proposed", "yes")
		case strings.Contains(s.Command, "berth lab probe"):
			part(figures, probed(t, out))
		case strings.Contains(s.Command, "berth adopt"):
			if figures = "after"; !isIdle() {
				t.Error("the hog's group is not idle")
			}
			part("in force", fmt.Sprintf("%d of 9", len(processes(t, "batch.service"))))
		}
		if err := s.Compare(out); err != nil {
			t.Error(err)
		}
	}
	var differs string
	await(t, "all is as it was", func() bool { // systemd may be about to disable controllers
		differs = cmp.Diff(before, stateOf(t, newcomersUnits()))
		if differs != "" {
			t.Logf("not yet as it was (-before +now):\n%s", differs)
		}
		return differs == ""
	})
	part("back", "yes")
	part("load average", strings.Fields(read(t, "/proc/loadavg"))[0])
	t.Logf("\n%s", parts.String())
	for _, want := range []string{"named", "before", "in force", "after", "back"} {
		if !strings.Contains("\n"+parts.String(), "\n"+want+",") {
			t.Errorf("the page does not have a newcomer do what tells: %s", want)
		}
	}
}

// probed returns requests per second and the p99 of what berth lab probe printed, which has to have
// some of both.
func probed(t *testing.T, out string) string {
	t.Helper()
	row := regexp.MustCompile(`(?m)^ *([0-9.]+) +[0-9.]+ \S+ +[0-9.]+ \S+ +([0-9.]+ (?:µs|ms|s)) +[0-9]+$`).FindStringSubmatch(out)
	if row == nil {
		t.Fatalf("no row of figures in\n%s", out)
	}
	if requests, err := strconv.ParseFloat(row[1], 64); err != nil || requests <= 0 {
		t.Errorf("%s requests per second: %v", row[1], err)
	}
	return row[1] + " and " + row[2]
}

// processes are those in the group of a service.
func processes(t *testing.T, unit string) []string {
	t.Helper()
	text, err := os.ReadFile("/sys/fs/cgroup/system.slice/" + unit + "/cgroup.procs")
	if err != nil {
		log, _ := exec.Command("journalctl", "--no-pager", "--unit", unit).CombinedOutput()
		t.Fatalf("%v\n%s", err, log)
	}
	all := strings.Fields(string(text))
	slices.Sort(all)
	return all
}

// stateOf is what is to be as it was: what systemd has of the units, values of their groups and of
// those above, and groups, CPUs, policy and nice value of their processes.
func stateOf(t *testing.T, units []string) map[string]string {
	t.Helper()
	state, groups := map[string]string{}, []string{"", "system.slice"}
	for _, unit := range units {
		groups = append(groups, "system.slice/"+unit)
		state[unit] = run(t, "systemctl", "show", "--property=ActiveState,MainPID,NRestarts,CPUWeight,CPUQuotaPerSecUSec,AllowedCPUs,AllowedMemoryNodes,"+
			"MemoryMax,MemoryHigh,MemoryLow,IOWeight,TasksMax", unit)
		for _, pid := range processes(t, unit) {
			stat := read(t, "/proc/"+pid+"/stat")
			_, stat, _ = strings.Cut(stat, ") ")
			fields := strings.Fields(stat)
			status := regexp.MustCompile(`(?m)^(?:Cpus|Mems)_allowed_list:.*$`).FindAllString(read(t, "/proc/"+pid+"/status"), -1)
			state["process "+pid] = fmt.Sprint(read(t, "/proc/"+pid+"/cgroup"), " nice ", fields[16], " policy ", fields[38], status)
		}
	}
	for _, group := range groups {
		for _, file := range []string{
			"cgroup.subtree_control", "cpu.weight", "cpu.idle", "cpu.max", "cpuset.cpus", "cpuset.mems", "cpuset.cpus.partition",
			"memory.max", "memory.high", "memory.low", "io.weight", "io.max", "pids.max",
		} {
			name := path.Join("/sys/fs/cgroup", group, file)
			text, err := os.ReadFile(name)
			if err != nil {
				text = []byte("not there")
			}
			state[name] = strings.TrimSpace(string(text))
		}
	}
	return state
}
