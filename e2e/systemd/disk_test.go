package systemd

import (
	"os"
	"strings"
	"testing"
)

// diskConfig limits what two services write and read on one disk, which it names by links.
const diskConfig = `apiVersion: berth.dev/v1alpha1
kind: NodeConfig
classes:
  io:
    classes:
      writer: [{devices: [/dev/disk/by-id/virtio-*], writeBPS: 1Mi}]
      reader: [{devices: [/dev/disk/by-label/berth-data], readBPS: 2Mi}]
workloads:
  - {name: web, match: {unit: web.service}, io: writer}
  - {name: db, match: {unit: db.service}, io: reader}
`

// TestAgentDisks has the unit, whose /dev has no disks, find one by the links of /dev/disk. A path
// that the unit does not show is a note.
func TestAgentDisks(t *testing.T) {
	const disk = "vda"
	number := read(t, "/sys/block/"+disk+"/dev")
	// As udev makes them, which this guest does not have.
	run(t, "mkdir", "-p", "/dev/disk/by-id", "/dev/disk/by-label")
	t.Cleanup(func() { run(t, "rm", "-r", "/dev/disk") })
	run(t, "ln", "-s", "../../"+disk, "/dev/disk/by-id/virtio-berth")
	run(t, "ln", "-s", "../../"+disk, "/dev/disk/by-label/berth-data")
	for _, name := range []string{"web", "db"} {
		startService(t, name, "ExecStart=sleep infinity\n")
	}
	run(t, "mkdir", "-p", "/etc/berth")
	writeFile(t, "/etc/berth/node.yaml", diskConfig)
	t.Cleanup(func() {
		run(t, "systemctl", "stop", agentUnit)
		run(t, "berth", "restore", "--all")
	})
	log := since(t)
	run(t, "systemctl", "start", agentUnit)
	has := func(service string) string {
		text, _ := os.ReadFile("/sys/fs/cgroup/system.slice/" + service + ".service/io.max") // without the controller there is none
		return strings.TrimSpace(string(text))
	}
	limited := func() bool {
		return has("web") == number+" rbps=max wbps=1048576 riops=max wiops=max" && has("db") == number+" rbps=2097152 wbps=max riops=max wiops=max"
	}
	await(t, "the disk is limited", limited)
	// systemd writes all that it knows of the units, and leaves them the controller.
	run(t, "systemctl", "set-property", "--runtime", "web.service", "CPUWeight=200")
	run(t, "systemctl", "daemon-reload")
	if !limited() {
		t.Errorf("after another property and a reload: web has %q, db %q", has("web"), has("db"))
	}
	expect(t, run(t, "systemctl", "show", "--property=IOAccounting", "web.service"), "IOAccounting=yes")
	run(t, "systemctl", "stop", agentUnit)
	for line := range strings.Lines(log()) {
		if refusal().MatchString(line) {
			t.Errorf("refused: %s", line)
		}
	}

	// Without the paths that the unit shows, nothing is found: the test sees what they do.
	run(t, "berth", "restore", "--all")
	dropIn(t, "[Service]\nBindReadOnlyPaths=\n")
	run(t, "systemctl", "start", agentUnit)
	placed(t, 2)
	await(t, "the disk is missed", func() bool {
		return strings.Contains(run(t, "berth", "explain", "web"), "/dev/disk/by-id/virtio-*: no such block device")
	})
	if text := has("web"); text != "" {
		t.Errorf("a disk that is not found is limited: %q", text)
	}
}
