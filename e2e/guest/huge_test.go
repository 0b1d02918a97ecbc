package guest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"berth.dev/berth/agent"
)

// TestHugePages limits a workload to the huge pages that it asks room for, and no other.
func TestHugePages(t *testing.T) {
	onlyOn(t, "server-order")
	const pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	before, err := os.ReadFile(pool)
	if err != nil {
		t.Skip(err)
	}
	if err := os.WriteFile(pool, []byte("8"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(pool, before, 0o600)
	if has, _ := os.ReadFile(pool); strings.TrimSpace(string(has)) != "8" {
		t.Skipf("this machine has room for %s huge pages of 8", has)
	}
	h := newHost(t)
	h.opt.Dir = agent.StateDir(0, "")
	limit := func(name string, flags ...string) string {
		args := append(append([]string{"run", "-q", "--name", name}, flags...), "--", "/bin/guest.test", "-test.run=^TestChild$")
		h.start(exec.Command("/bin/berth", args...))
		text, err := os.ReadFile("/sys/fs/cgroup/berth/" + name + "/hugetlb.2MB.max")
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(text))
	}
	if got := limit("huge", "--hugepages", "2Mi=8Mi"); got != "8388608" {
		t.Errorf("hugetlb.2MB.max of a workload that asks for 8Mi is %s", got)
	}
	if got := limit("small"); got != "max" {
		t.Errorf("hugetlb.2MB.max of one that asks for none is %s", got)
	}
	if output, exit := berth(t, "run", "-q", "--hugepages", "2Mi=32Mi", "--", "/bin/berth", "help"); exit != 125 {
		t.Errorf("it is given more than there is: exit status %d, %s", exit, output)
	}
}
