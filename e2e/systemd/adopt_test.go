package systemd

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestAdopt adopts a service and a process with its children, as berth does by hand, and
// gives both back while they run.
func TestAdopt(t *testing.T) {
	leave := startService(t, "job", "ExecStart=/bin/sh -c 'sleep 1000 & wait'\nCPUWeight=300\n")
	const dir = "/sys/fs/cgroup/system.slice/job.service/"
	main := strings.TrimPrefix(run(t, "systemctl", "show", "--property=MainPID", "job.service"), "MainPID=")

	if said := run(t, "berth", "adopt", "--unit", "job.service", "--class", "BE", "--quota", "1"); !strings.HasSuffix(said, "job.service runs on 0-3") {
		t.Errorf("adopt: %s", said)
	}
	expect(t, read(t, dir+"cpu.idle"), "1")
	expect(t, read(t, dir+"cpu.max"), "100000 100000")
	if shown := run(t, "berth", "ps"); !strings.Contains(shown, "job.service") {
		t.Errorf("berth ps: %s", shown)
	}
	expect(t, run(t, "berth", "release", "job.service", "--keep"), "released job.service")
	back := func() bool { // systemd may still be about to enable the controller again
		idle, _ := os.ReadFile(dir + "cpu.idle")
		weight, _ := os.ReadFile(dir + "cpu.weight")
		return string(idle) == "0\n" && string(weight) == "300\n"
	}
	for deadline := time.Now().Add(5 * time.Second); !back() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if !back() {
		t.Fatalf("after the release: %s; %s", run(t, "systemctl", "show", "--property=CPUWeight,CPUQuotaPerSecUSec,AllowedCPUs", "job.service"),
			run(t, "sh", "-c", "cat /run/systemd/system.control/job.service.d/*; grep . "+dir+"cpu.*; berth restore"))
	}
	expect(t, strings.Fields(read(t, dir+"cpu.max"))[0], "max")
	expect(t, run(t, "systemctl", "show", "--property=MainPID", "job.service"), "MainPID="+main)

	// A process of a service is not taken out of its group.
	text, err := exec.Command("berth", "adopt", "--pid", main, "--class", "BE").CombinedOutput()
	if err == nil || !strings.Contains(string(text), "adopt that with --unit job.service") {
		t.Errorf("a process of the service: %v, %s", err, text)
	}
	leave()
	text, err = exec.Command("berth", "adopt", "--unit", "job.service").CombinedOutput()
	// systemd forgets a unit without a file once it has ended.
	if err == nil || !strings.Contains(string(text), "unit job.service: it is not active") && !strings.Contains(string(text), "unit job.service: there is no such unit") {
		t.Errorf("a service that has ended: %v, %s", err, text)
	}

	// A session that somebody has logged into, and another process of it.
	cmd := exec.Command("systemd-run", "--quiet", "--scope", "--unit=session-99.scope", "sh", "-c", "(sleep 1000 &); sleep 1000 & echo $!; wait")
	t.Cleanup(func() { _ = exec.Command("systemctl", "stop", "session-99.scope").Run() })
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	child, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child = strings.TrimSpace(child)
	defer func() { _ = exec.Command("kill", child).Run() }()
	parent := strconv.Itoa(cmd.Process.Pid)
	before := read(t, "/proc/"+child+"/cgroup")
	run(t, "berth", "adopt", "--pid", parent, "--name", "tree", "--class", "LSE", "--cpus", "1")
	for _, pid := range []string{parent, child} {
		if at := read(t, "/proc/"+pid+"/cgroup"); !strings.HasSuffix(at, "/berth/tree") {
			t.Errorf("process %s is in %s", pid, at)
		}
	}
	text, err = exec.Command("berth", "release", "tree").CombinedOutput()
	if err == nil || !strings.Contains(string(text), "--keep lets them run on") {
		t.Errorf("release: %v, %s", err, text)
	}
	run(t, "berth", "release", "tree", "--keep")
	expect(t, read(t, "/proc/"+child+"/cgroup"), before)
	expect(t, read(t, "/proc/"+parent+"/cgroup"), before)
	expect(t, run(t, "berth", "restore"), "nothing to restore")
}
